"""What a decoder is computed with: one protocol, a portable set in torch and a native one for AVX-512 CPUs."""
