"""vLLM's Model Runner V2 on a CPU: its own code, with its Triton kernels run by Triton's interpreter."""
