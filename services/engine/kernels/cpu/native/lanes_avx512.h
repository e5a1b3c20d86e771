// The lanes on AVX-512 with BF16; included by lanes.h alone.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")
#include <immintrin.h>

#define REGISTERS 32  // that hold sixteen floats each
#define MULTIPLIES_PAIRS true  // of bfloat16, in one instruction

typedef __m512 f32s;
typedef __m512i words;    // sixteen words of 32 bits as they lie in memory: floats, or pairs of bfloat16
typedef __m512bh pair_lanes;  // sixteen pairs of bfloat16, ready to be multiplied

INLINE __mmask16 first_lanes(int count) {
    return count >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << count) - 1);
}

INLINE f32s zeros(void) { return _mm512_setzero_ps(); }
INLINE f32s everywhere(float x) { return _mm512_set1_ps(x); }
INLINE f32s add(f32s a, f32s b) { return _mm512_add_ps(a, b); }
INLINE f32s subtract(f32s a, f32s b) { return _mm512_sub_ps(a, b); }
INLINE f32s multiply(f32s a, f32s b) { return _mm512_mul_ps(a, b); }
INLINE f32s divide(f32s a, f32s b) { return _mm512_div_ps(a, b); }
INLINE f32s larger(f32s a, f32s b) { return _mm512_max_ps(a, b); }
INLINE f32s multiply_add(f32s a, f32s b, f32s c) { return _mm512_fmadd_ps(a, b, c); }        // a * b + c
INLINE f32s multiply_subtract(f32s a, f32s b, f32s c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
INLINE f32s magnitude(f32s x) { return _mm512_abs_ps(x); }
INLINE f32s minus_magnitude(f32s x) { return _mm512_sub_ps(zeros(), _mm512_abs_ps(x)); }
INLINE f32s nearest(f32s x) { return _mm512_roundscale_ps(x, 0x08); }
INLINE f32s times_power_of_two(f32s x, f32s n) { return _mm512_scalef_ps(x, n); }

INLINE f32s where_negative(f32s x, f32s then, f32s otherwise) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, zeros(), _CMP_LT_OQ), otherwise, then);
}

INLINE f32s load_all(const float *x) { return _mm512_loadu_ps(x); }
INLINE void store_all(float *x, f32s v) { _mm512_storeu_ps(x, v); }
INLINE f32s load(const float *x, int count) { return _mm512_maskz_loadu_ps(first_lanes(count), x); }
INLINE void store(float *x, int count, f32s v) { _mm512_mask_storeu_ps(x, first_lanes(count), v); }

// `otherwise` in the lanes beyond.
INLINE f32s load_or(const float *x, int count, f32s otherwise) {
    return _mm512_mask_loadu_ps(otherwise, first_lanes(count), x);
}

INLINE f32s keep(f32s x, int count) { return _mm512_maskz_mov_ps(first_lanes(count), x); }

INLINE f32s load_bf16(const bf16 *x, int count) {
    const __m256i halves = _mm256_maskz_loadu_epi16(first_lanes(count), x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

// Ties to even; keeps infinities and NaN.
INLINE void store_bf16(bf16 *x, int count, f32s v) {
    _mm256_mask_storeu_epi16(x, first_lanes(count), (__m256i)_mm512_cvtneps_pbh(v));
}

INLINE f32s load_f16(const f16 *x, int count) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(count), x));
}

INLINE void store_f16(f16 *x, int count, f32s v) {
    _mm256_mask_storeu_epi16(x, first_lanes(count), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

INLINE f32s load_i8(const int8_t *x, int count) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first_lanes(count), x)));
}

INLINE void store_i8(int8_t *x, int count, f32s v) {
    _mm_mask_storeu_epi8(x, first_lanes(count), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
}

INLINE words load_words(const void *x) { return _mm512_loadu_si512(x); }
INLINE words load_words_some(const void *x, int count) { return _mm512_maskz_loadu_epi32(first_lanes(count), x); }
INLINE words load_bf16_words(const bf16 *x, int count) {  // up to 32, two in a word
    return _mm512_maskz_loadu_epi16(count >= 32 ? ~(__mmask32)0 : (((__mmask32)1 << count) - 1), x);
}
INLINE f32s floats_of(words x) { return _mm512_castsi512_ps(x); }
INLINE pair_lanes pairs_of(words x) { return (pair_lanes)x; }
INLINE pair_lanes every_pair(const void *pair) { return (pair_lanes)_mm512_set1_epi32(*(const int32_t *)pair); }

// Adds a's first times b's first and a's second times b's second.
INLINE f32s dot_pairs(f32s sum, pair_lanes a, pair_lanes b) { return _mm512_dpbf16_ps(sum, a, b); }

INLINE void fetch(const void *x) { _mm_prefetch(x, _MM_HINT_T0); }

INLINE float greatest_lane(f32s x) { return _mm512_reduce_max_ps(x); }

// Adds lane i to i + 8, then to i + 4, i + 2, i + 1. sum_tile() uses the same tree.
INLINE float sum_lanes(f32s x) {
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

INLINE f32s fold_halves(f32s a, f32s b) {
    return add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}

INLINE f32s fold_quarters(f32s ab, f32s cd) {
    return add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

// Sums of sixteen vectors at once: sums[4 * i + j] is sum_lanes(x[i][j]).
INLINE void sum_tile(f32s x[4][4], float sums[16]) {
    f32s q[4];
    for (int j = 0; j < 4; j++)
        q[j] = fold_quarters(fold_halves(x[0][j], x[1][j]), fold_halves(x[2][j], x[3][j]));
    f32s low = add(_mm512_shuffle_ps(q[0], q[1], 0x44), _mm512_shuffle_ps(q[0], q[1], 0xee));
    f32s high = add(_mm512_shuffle_ps(q[2], q[3], 0x44), _mm512_shuffle_ps(q[2], q[3], 0xee));
    store_all(sums, add(_mm512_shuffle_ps(low, high, 0x88), _mm512_shuffle_ps(low, high, 0xdd)));
}
