"""The Triton backend `cpu` that vLLM asks for before it runs Model Runner V2 on a CPU.

vLLM expects triton-cpu, which is built from source. With `TRITON_INTERPRET=1` Triton compiles nothing, so a backend that is
there is enough.
"""
