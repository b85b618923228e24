"""Finds a library's attention inside a learner's function: by the names it uses, and by what was seen to run.

The search starts at the learner's function and follows the functions of their own that it uses.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable

# Whatever the exercise, these do its work.
ATTENTION = (
    "scaled_dot_product_attention", "flex_attention", "multi_head_attention_forward", "MultiheadAttention",
    "flash_attn_func", "flash_attn_varlen_func", "flash_attn_qkvpacked_func", "memory_efficient_attention",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_attention_math",
)  # fmt: skip
# Modules that hold answers; the toy, the masks and the instruments may be used.
ANSWERS = (
    "flashlib.algorithms", "flashlib.grading", "flashlib.instruments.pipelines", "flashlib.instruments.closed_forms",
    "flashlib.bench_gpu", "flash_attn", "xformers",
)  # fmt: skip
FRONT_DOORS = ("flashlib.attention", "flashlib.decode", "flashlib.gpt")
ALLOWED = ("flashlib.algorithms.toy", "flashlib.algorithms.masks", "flashlib.grading.check", "flashlib.grading.inputs")

# Who forbids one of these forbids its relatives, and torch's inner names of them (torch.ops.aten._softmax).
RELATIVES = {
    "softmax": ("log_softmax", "softmin", "Softmax", "LogSoftmax", "Softmin"),
    "logsumexp": ("logaddexp", "logaddexp2", "logcumsumexp"),
}

#: what a name means: ("source", text) of a function of the learner's own, ("from", "module.name"), or None: harmless
Resolve = Callable[[str], tuple[str, str] | None]


def refused(forbidden: Iterable[str]) -> set[str]:
    """All names that an exercise refuses: attention as a whole, what it forbids, and the relatives of that."""
    names = {n for name in forbidden for n in (name, *RELATIVES.get(name, ()))}
    return {*ATTENTION, *names, *(f"_{n}" for n in names)}


def find(start: str, resolve: Resolve, forbidden: Iterable[str] = ()) -> str | None:
    """The first forbidden name that the function ``start`` uses, itself or through others; None if there is none."""
    banned = refused(forbidden)
    todo, seen = [start], set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        meaning = resolve(name)
        if meaning is None:
            continue
        kind, text = meaning
        if kind == "from":
            if _answers(text) or text.rpartition(".")[2] in banned:
                return text
            continue
        try:
            tree = ast.parse(textwrap.dedent(text))
        except SyntaxError:
            continue
        own = _own_names(tree)
        for node in ast.walk(tree):
            hit, more = _names(node, banned)
            if hit:
                return hit
            todo += [n for n in more if n not in own]
    return None


def _own_names(tree: ast.AST) -> set[str]:
    """Parameters and variables of the functions in the tree: they do not mean what the notebook calls so."""
    found: set[str] = set()
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.Lambda)):
            nodes = list(ast.walk(function))
            found |= {n.arg for n in nodes if isinstance(n, ast.arg)}
            found |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            found -= {name for n in nodes if isinstance(n, ast.Global) for name in n.names}
    return found


def _names(node: ast.AST, banned: set[str]) -> tuple[str | None, list[str]]:
    """A forbidden name at this node, and names to look up next."""
    if isinstance(node, ast.Name):
        return None, [node.id]
    if isinstance(node, ast.Attribute):
        whole = _dotted(node)
        if node.attr in banned or _answers(whole):
            return whole or node.attr, []
    if isinstance(node, ast.Constant) and node.value in banned:  # getattr(F, "…")
        return str(node.value), []
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        module = getattr(node, "module", None) or ""
        for alias in node.names:
            whole = f"{module}.{alias.name}".strip(".")
            if alias.name in banned or _answers(whole):
                return whole, []
    return None, []


def _answers(name: str) -> bool:
    if name in FRONT_DOORS:
        return True
    inside = any(name == m or name.startswith(m + ".") for m in ANSWERS)
    return inside and not any(name == m or name.startswith(m + ".") for m in ALLOWED)


def _dotted(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def of_function(fn: Callable[..., object]) -> tuple[str, Resolve]:
    """Start and resolver for a function that is at hand: its source, its globals and what it closes over."""
    fn = getattr(fn, "fn", fn)  # a Triton kernel holds its Python function
    start = getattr(fn, "__name__", "")
    known = {**getattr(fn, "__globals__", {}), **_closure(fn)}

    def resolve(name: str) -> tuple[str, str] | None:
        thing = fn if name == start else known.get(name)
        if thing is None:
            return None
        thing = getattr(thing, "fn", thing)
        module = getattr(thing, "__module__", None) or (thing.__name__ if inspect.ismodule(thing) else "")
        if _answers(module) or (module.startswith("flashlib") and name == "attention"):
            return "from", f"{module}.{getattr(thing, '__name__', name)}" if not inspect.ismodule(thing) else module
        if getattr(thing, "__name__", "") in ATTENTION:
            return "from", f"{module}.{thing.__name__}"
        if inspect.isfunction(thing) or inspect.isclass(thing):
            if module.split(".")[0] in ("torch", "numpy", "triton", "flashlib", "math"):
                return "from", f"{module}.{getattr(thing, '__name__', name)}"
            try:
                return "source", inspect.getsource(thing)
            except (OSError, TypeError):
                return None
        return None

    return start, resolve


def _closure(fn: object) -> dict[str, object]:
    code, cells = getattr(fn, "__code__", None), getattr(fn, "__closure__", None) or ()
    found: dict[str, object] = {}
    for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    return found


def of_cells(cells: Iterable[str], start: str) -> tuple[str, Resolve]:
    """Start and resolver for a notebook that is not run: the last definition of a name counts."""
    meanings: dict[str, tuple[str, str]] = {}
    for cell in cells:
        try:
            tree = ast.parse(cell)
        except SyntaxError:
            continue
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                meanings[node.name] = ("source", ast.get_source_segment(cell, node) or "")
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                module = getattr(node, "module", None) or ""
                for alias in node.names:
                    bound = alias.asname or alias.name.split(".")[0]
                    whole = f"{module}.{alias.name}".strip(".") if module or alias.asname else bound
                    meanings[bound] = ("from", whole)
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                meanings[node.targets[0].id] = ("source", ast.get_source_segment(cell, node.value) or "")
    return start, meanings.get
