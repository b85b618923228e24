"""What to say of mistakes that several exercises know: name → (what the output equals, the question that mends it)."""

TEXT = {
    "acc is not rescaled": (
        "an acc that is not rescaled when the maximum rises, while l is",
        "At which line is m overwritten, and which of your factors is computed after it?",
    ),
    "never rescaled": (
        "a state that is never rescaled when the maximum rises",
        "l and acc were summed against the old m. By what factor do both have to shrink?",
    ),
    "l is not rescaled": (
        "an l that is not rescaled when the maximum rises, while acc is",
        "l is a sum of exp(s − m). Against which m were its earlier terms measured?",
    ),
    "each tile its own maximum": (
        "a program that measures the tile against the tile's own maximum",
        "After this tile, against which maximum are l and acc to be measured?",
    ),
    "the tile's maximum returned": (
        "a program that takes the tile's maximum for the running one",
        "What is m after a tile whose scores are all smaller than those before?",
    ),
    "scale left out": ("scores without the scale", "By what are the products q·k divided before the softmax?"),
    "scale 1/D": ("scores divided by D", "The variance of q·k grows with D. How does its spread grow?"),
    "scale from the number of keys": (
        "scores divided by the root of the number of keys in the tile",
        "Over which numbers does q·k sum: the features or the keys?",
    ),
    "no second axis": (
        "It lets a vector with one number a row meet a matrix with one row for each.",
        "m and l are columns, (Br, 1). How does `amax` keep the axis over which it goes?",
    ),
    "k not transposed": (
        "It multiplies q (Br, D) by k (Bc, D) as they are.",
        "The scores are (Br, Bc). Which axis of k must meet the features of q?",
    ),
    "no maximum": ("a program that takes exp(s) with no maximum taken off", "What is exp(120) in float32?"),
    "one maximum for all rows": (
        "a program that takes one maximum for all rows of the tile",
        "What is exp(s − m) in a row whose scores all lie far below those of another row?",
    ),
    "acc rescaled the wrong way": (
        "a program that multiplies acc by exp(m_new − m_old), as a misprint has it",
        "When the maximum rises, must what was summed before grow or shrink?",
    ),
    "every tile divided": (
        "a program that divides every tile by the tile's own sum",
        "By which sum must a row be divided, and when do you know it?",
    ),
    "powers of 2": ("a program that uses powers of 2", "To which base are l and acc summed?"),
    "mean for sum": ("a program that takes the mean of the weights for their sum", "What does l add up?"),
    "the first tile's maximum kept": (
        "a program that keeps the first tile's maximum for good",
        "What does exp(s − m) become in float32 if a later score is larger than m by 100?",
    ),
    "both rescaled the wrong way": (
        "a program that multiplies l and acc by exp(m_new − m_old)",
        "When the maximum rises, must what was summed before grow or shrink?",
    ),
    "divided in every turn": (
        "a program that divides acc by l in every turn, and then adds to the quotient",
        "l grows with every tile. By which l has the first tile been divided in the end?",
    ),
    "divided in every turn and at the end": (
        "a program that divides acc by l in every turn and once more at the end",
        "l grows with every tile. By which l has the first tile been divided in the end?",
    ),
    "l first": ("a program that returns l first and m second", "In which order does the signature name them?"),
    "scale from the number of rows": (
        "scores divided by the root of the number of rows in the tile",
        "Over which numbers does q·k sum: the features or the rows?",
    ),
    "never divided": (
        "an acc that is never divided by l",
        "The last column of v is 1 everywhere. What must the last column of o be?",
    ),
}
