// Sixteen floats at a time: loads, stores, fixed sums. Every order of summation of this library is in here
// or in a loop over absolute indices, so that results do not depend on what else is computed.
#ifndef HALOGEN_LANES_H
#define HALOGEN_LANES_H

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES 16

typedef uint16_t bf16;

INLINE int least(int a, int b) { return a < b ? a : b; }

// The first `count` of sixteen lanes; all for 16 and more.
INLINE __mmask16 first_lanes(int count) {
    return count >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1);
}

INLINE __m512 widen(__m256i halves) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// float32 to bfloat16, ties to even; keeps infinities and NaN.
INLINE __m256i narrow(__m512 x) { return (__m256i)_mm512_cvtneps_pbh(x); }

INLINE __m512bh pairs(__m512i bits) { return (__m512bh)bits; }

// Adds lane i to i + 8, then to i + 4, i + 2, i + 1. sum_tile() uses the same tree.
INLINE float sum_lanes(__m512 x) {
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

INLINE __m512 fold_halves(__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

INLINE __m512 fold_quarters(__m512 ab, __m512 cd) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

// Sums of sixteen vectors at once: lane 4 * i + j of the result is sum_lanes(x[i][j]).
INLINE __m512 sum_tile(__m512 x[4][4]) {
    __m512 q[4];
    for (int j = 0; j < 4; j++)
        q[j] = fold_quarters(fold_halves(x[0][j], x[1][j]), fold_halves(x[2][j], x[3][j]));
    __m512 low = _mm512_add_ps(_mm512_shuffle_ps(q[0], q[1], 0x44), _mm512_shuffle_ps(q[0], q[1], 0xee));
    __m512 high = _mm512_add_ps(_mm512_shuffle_ps(q[2], q[3], 0x44), _mm512_shuffle_ps(q[2], q[3], 0xee));
    return _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x88), _mm512_shuffle_ps(low, high, 0xdd));
}

// e to the x, for x <= 0; relative error below 2e-7. 2^n * e^r with |r| <= ln(2) / 2 (Cody and Waite 1980).
INLINE __m512 exp_lanes(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-104.0f));  // e^-104 is below every float; -inf goes this way too
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0x08);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(p, n);
}

#endif
