"""Runs notebooks inside the Colab-like environment, whose Python runs this file: run.py (first|whole) NOTEBOOK ...

Prints one JSON line a notebook: name, error ("" if none), printed text of the setup cell, versions seen in the kernel,
and what each cell put out: for each output its kinds, its HTML, and the HTML inside its widget, if it is one.
"""

import json
import os
import sys

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

VERSIONS = """
import importlib, json, sys
_names = ["IPython", "ipykernel", "ipywidgets", "numpy", "traitlets"]
print(json.dumps({n: importlib.import_module(n).__version__ for n in _names} | {"torch": "torch" in sys.modules}))
"""

VIEW = "application/vnd.jupyter.widget-view+json"


def widget_text(state, model):
    """The HTML that a widget and those inside it hold, from the notebook's widget state; None if it is not there."""
    if model not in state:
        return None
    own = state[model]["state"]
    inside = [widget_text(state, child.removeprefix("IPY_MODEL_")) or "" for child in own.get("children", [])]
    return "".join([own["value"] if own["_model_name"] == "HTMLModel" else "", *inside])


def put_out(nb):
    """Per code cell: id, source, and for each output that has data its kinds, HTML and widget's HTML."""
    state = nb.metadata.get("widgets", {}).get("application/vnd.jupyter.widget-state+json", {}).get("state", {})
    cells = []
    for cell in nb.cells:
        if cell.cell_type == "code":
            shown = [o.data for o in cell.outputs if "data" in o]
            outputs = [
                {"kinds": sorted(d), "html": d.get("text/html", ""), "text": d.get("text/plain", "")}
                | {"widget": widget_text(state, d[VIEW]["model_id"]) if VIEW in d else None}
                for d in shown
            ]
            cells.append({"id": cell.id, "source": cell.source, "outputs": outputs})
    return cells


mode, *paths = sys.argv[1:]
for path in paths:
    nb = nbformat.read(path, as_version=4)
    if mode == "first":
        nb.cells = [c for c in nb.cells if c.cell_type == "code"][:1]
    nb.cells.append(nbformat.v4.new_code_cell(VERSIONS))
    client = NotebookClient(nb, timeout=120, kernel_name="python3", resources={"metadata": {"path": os.getcwd()}})
    error = ""
    try:
        client.execute()
    except CellExecutionError as failure:
        error = str(failure)
    setup = next(c for c in nb.cells if c.cell_type == "code")
    printed = "".join(o.get("text", "") for o in setup.outputs)
    last = "".join(o.get("text", "") for o in nb.cells[-1].get("outputs", []))
    kinds = sorted({kind for c in nb.cells for o in c.get("outputs", []) for kind in o.get("data", {})})
    line = {"name": os.path.basename(path), "error": error, "printed": printed, "kinds": kinds}
    line["cells"] = put_out(nb) if mode == "whole" else []
    print(json.dumps(line | {"versions": json.loads(last) if last.startswith("{") else {}}), flush=True)
