"""``python -m flashlib``: the command line."""

import sys

try:
    from flashlib.cli import app
except ModuleNotFoundError as missing:
    if (missing.name or "").split(".")[0] not in ("typer", "rich", "tqdm"):
        raise
    sys.exit(f"flashlib's command line needs {missing.name}; run: {sys.executable} -m pip install typer rich tqdm")

app(prog_name="python -m flashlib")
