"""`python -m flashlib bench` on a GPU: exactness first, then TFLOP/s and peak memory beside the kernels people use."""
