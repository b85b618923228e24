"""What a notebook may ask of google.colab."""

from . import files, output

__all__ = ["files", "output"]
