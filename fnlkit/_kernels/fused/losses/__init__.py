"""Parts of the losses of the fused path, one idea per file; `fnlkit._kernels.fused.loss` adds them."""
