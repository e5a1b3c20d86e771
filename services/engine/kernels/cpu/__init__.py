"""The native sets: C for CPUs with AVX-512 and its bfloat16 dot products, or with AVX2; one call per step."""
