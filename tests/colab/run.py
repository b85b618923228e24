"""Runs notebooks inside the Colab-like environment, whose Python runs this file: run.py (first|whole) NOTEBOOK ...

Prints one JSON line a notebook: name, error ("" if none), printed text of the setup cell, versions seen in the kernel.
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
    print(json.dumps(line | {"versions": json.loads(last) if last.startswith("{") else {}}), flush=True)
