"""Where the instructions of a loop go: every SASS mnemonic gets one kind, by its opcode. What no rule knows is "other".

The opcodes are those of NVIDIA's "CUDA Binary Utilities", chapter "Instruction Set Reference", and those met in our own
kernels. A mnemonic is ``HEAD.SUFFIX…``; the head decides, except where one head does two kinds of work.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

# kind, what it holds in words, heads. The first rule that matches the whole head, or the whole mnemonic, wins.
RULES: tuple[tuple[str, str, str], ...] = (
    ("padding", "fills the code, does nothing, and is not counted: NOP", r"NOP"),
    ("dot", "matrix instructions of the tensor cores: HMMA, HGMMA, UTCHMMA …", r"\w*MMA"),
    ("exp2", "the special-function unit, 2ˣ above all: MUFU", r"MUFU"),
    ("max", "floating maximum and minimum: FMNMX", r"[FHD]MNMX\d?"),
    ("convert", "between float32 and float16, integer and float: F2FP, HADD2.F32",
     r"U?F2\w+|U?I2\w+|U?FRND|HADD2\.F32"),
    ("scale, add", "floating multiply, add, multiply-add: scaling, subtracting, summing; and the dots where no tensor "
     "core does them: FFMA, FMUL, FADD, HFMA2", r"[FHD](FMA|MUL|ADD)\w*"),
    ("compare, choose", "masks, bounds and predicates: FSETP, ISETP, FSEL, SEL, P2R",
     r"U?[FHDIPB]?(SETP?|SEL)\d?|U?PLOP3|U?P2U?R|U?R2U?P|FCHK"),
    ("exchange", "between the threads of a warp: SHFL, REDUX, VOTE", r"SHFL|C?REDUX|U?VOTEU?|MATCH"),
    ("load, store", "global, shared, tensor and local memory, and asynchronous copies: LDSM, LDGSTS, STS",
     r"LD|ST|LD[GSLT]|ST[GSL]|LDSM|STSM|LDGSTS|LDTM|STTM|ATOM[SG]?|REDG?|UTMA\w+|UBLK\w+"),
    ("move", "a register, a constant or the bytes of one into another: MOV, PRMT, CS2R, LDC",
     r"U?MOV|IMAD\.MOV(\..*)?|IMAD\.U32|U?PRMT|CS2U?R|S2U?R|R2UR|U?LDCU?|R2B|B2R|BMOV|MOVM"),
    ("integer", "addresses, offsets and counters: IMAD, IADD3, LEA, SHF, LOP3 and their uniform twins",
     r"U?IMAD|U?I?ADD3?|U?VI?ADD\w*|U?IADD\w*|U?LEA|U?SHF|U?SH[LR]|U?LOP3?|U?IABS|V?IMNMX\d?|U?VIMNMX\d?|U?SGXT|U?BMSK|"
     r"U?FLO|U?POPC|U?BREV|IMUL|IDP\dA?|U?ISCADD|LEPC|XMAD"),
    ("control", "branches, calls, barriers, waiting for copies: BRA, BAR, LDGDEPBAR, SYNCS",
     r"BRA|BRX|JM[PX]|CALL|RET|EXIT|BSSY|BSYNC|BREAK|WARPSYNC|BAR|\w*DEPBAR|MEMBAR|FENCE|ERRBAR|SYNCS|UTCBAR|"
     r"WARPGROUP|ENDCOLLECTIVE|ELECT|NANOSLEEP|YIELD|PREEXIT|CCTLL?|UCGABAR\w*|ACQBULK|USETMAXREG|BPT|KILL|RPCMOV"),
    ("other", "what none of these rules knows, listed by name", r".*"),
)  # fmt: skip
_PATTERNS = [(kind, re.compile(pattern)) for kind, _, pattern in RULES]
KINDS = tuple(kind for kind, _, _ in RULES if kind != "padding")


def kind_of(mnemonic: str) -> str:
    """The kind of one mnemonic, with or without suffixes: "HMMA.16816.F32" is a "dot"."""
    head = mnemonic.split(".")[0]
    return next(kind for kind, p in _PATTERNS if p.fullmatch(mnemonic) or p.fullmatch(head))


def by_kind(mnemonics: Iterable[str] | dict[str, int]) -> dict[str, int]:
    """How many instructions of each kind; all of `KINDS` in order, 0 where there are none. Padding is left out."""
    found: Counter[str] = Counter()
    for name, n in Counter(mnemonics).items():
        found[kind_of(name)] += n
    return {kind: found[kind] for kind in KINDS}


def unknown(mnemonics: Iterable[str] | dict[str, int]) -> dict[str, int]:
    """The mnemonics of kind "other", with their numbers."""
    return {name: n for name, n in sorted(Counter(mnemonics).items()) if kind_of(name) == "other"}
