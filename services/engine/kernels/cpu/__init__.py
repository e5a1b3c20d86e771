"""The native set: C for CPUs with AVX-512 and its bfloat16 dot products, one call per step."""
