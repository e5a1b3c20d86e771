// The lanes on AVX2 with FMA and F16C: two vectors of eight; included by lanes.h alone. bfloat16 is widened and
// multiplied in float32.
#pragma GCC target("avx2,fma,f16c")
#include <immintrin.h>
#include <string.h>

#define REGISTERS 8  // times sixteen floats: each takes two of sixteen registers
#define MULTIPLIES_PAIRS false  // of bfloat16, in one instruction

typedef struct {
    __m256 low, high;
} f32s;
typedef struct {
    __m256i low, high;
} words;  // sixteen words of 32 bits as they lie in memory: floats, or pairs of bfloat16
typedef struct {
    f32s even, odd;
} pair_lanes;  // sixteen pairs of bfloat16, ready to be multiplied

static const int32_t halogen_lane_masks[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

INLINE words first_lanes(int count) {
    const int32_t *masks = halogen_lane_masks + LANES - count;
    return (words){_mm256_loadu_si256((const __m256i *)masks), _mm256_loadu_si256((const __m256i *)(masks + 8))};
}

INLINE f32s zeros(void) { return (f32s){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE f32s everywhere(float x) { return (f32s){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE f32s add(f32s a, f32s b) { return (f32s){_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
INLINE f32s subtract(f32s a, f32s b) { return (f32s){_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
INLINE f32s multiply(f32s a, f32s b) { return (f32s){_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
INLINE f32s divide(f32s a, f32s b) { return (f32s){_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
INLINE f32s larger(f32s a, f32s b) { return (f32s){_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }

INLINE f32s multiply_add(f32s a, f32s b, f32s c) {  // a * b + c
    return (f32s){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

INLINE f32s multiply_subtract(f32s a, f32s b, f32s c) {  // c - a * b
    return (f32s){_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}

INLINE f32s magnitude(f32s x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (f32s){_mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high)};
}

INLINE f32s minus_magnitude(f32s x) { return subtract(zeros(), magnitude(x)); }

INLINE f32s nearest(f32s x) { return (f32s){_mm256_round_ps(x.low, 0x08), _mm256_round_ps(x.high, 0x08)}; }

INLINE __m256 power_of_two(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

// In two steps, since 2^n alone may be below the smallest normal float.
INLINE __m256 scale_half(__m256 x, __m256 n) {
    const __m256i whole = _mm256_cvtps_epi32(n), part = _mm256_srai_epi32(whole, 1);
    return _mm256_mul_ps(_mm256_mul_ps(x, power_of_two(part)), power_of_two(_mm256_sub_epi32(whole, part)));
}

INLINE f32s times_power_of_two(f32s x, f32s n) {  // for |n| <= 252
    return (f32s){scale_half(x.low, n.low), scale_half(x.high, n.high)};
}

INLINE f32s where_negative(f32s x, f32s then, f32s otherwise) {
    const __m256 none = _mm256_setzero_ps();
    return (f32s){_mm256_blendv_ps(otherwise.low, then.low, _mm256_cmp_ps(x.low, none, _CMP_LT_OQ)),
                  _mm256_blendv_ps(otherwise.high, then.high, _mm256_cmp_ps(x.high, none, _CMP_LT_OQ))};
}

INLINE f32s load_all(const float *x) { return (f32s){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }

INLINE void store_all(float *x, f32s v) {
    _mm256_storeu_ps(x, v.low);
    _mm256_storeu_ps(x + 8, v.high);
}

INLINE f32s load(const float *x, int count) {
    if (count >= LANES) return load_all(x);
    const words mask = first_lanes(count);
    return (f32s){_mm256_maskload_ps(x, mask.low), _mm256_maskload_ps(x + 8, mask.high)};
}

INLINE void store(float *x, int count, f32s v) {
    if (count >= LANES) {
        store_all(x, v);
        return;
    }
    const words mask = first_lanes(count);
    _mm256_maskstore_ps(x, mask.low, v.low);
    _mm256_maskstore_ps(x + 8, mask.high, v.high);
}

// `otherwise` in the lanes beyond.
INLINE f32s load_or(const float *x, int count, f32s otherwise) {
    if (count >= LANES) return load_all(x);
    const words mask = first_lanes(count);
    return (f32s){_mm256_blendv_ps(otherwise.low, _mm256_maskload_ps(x, mask.low), _mm256_castsi256_ps(mask.low)),
                  _mm256_blendv_ps(otherwise.high, _mm256_maskload_ps(x + 8, mask.high),
                                   _mm256_castsi256_ps(mask.high))};
}

INLINE f32s keep(f32s x, int count) {
    if (count >= LANES) return x;
    const words mask = first_lanes(count);
    return (f32s){_mm256_and_ps(x.low, _mm256_castsi256_ps(mask.low)),
                  _mm256_and_ps(x.high, _mm256_castsi256_ps(mask.high))};
}

INLINE __m256 widen(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

// Less than 128 bytes, in pieces of known sizes.
INLINE void copy_bytes(void *to, const void *from, size_t bytes) {
    for (size_t piece = 64, at = 0; piece; piece /= 2) {
        if (!(bytes & piece)) continue;
        memcpy((char *)to + at, (const char *)from + at, piece);
        at += piece;
    }
}

// Where less than sixteen are left, what lies beyond may not be ours: it goes through a copy.
INLINE const void *whole(const void *x, int count, size_t size, void *copy) {
    if (count >= LANES) return x;
    memset(copy, 0, LANES * size);
    copy_bytes(copy, x, (size_t)count * size);
    return copy;
}

INLINE f32s load_bf16(const bf16 *x, int count) {
    bf16 copy[LANES];
    const __m128i *halves = whole(x, count, sizeof *x, copy);
    return (f32s){widen(_mm_loadu_si128(halves)), widen(_mm_loadu_si128(halves + 1))};
}

// Ties to even; keeps infinities and NaN.
INLINE __m256i narrow(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
}

INLINE void store_halves(void *x, int count, __m256i halves) {
    if (count >= LANES) {
        _mm256_storeu_si256(x, halves);
        return;
    }
    uint16_t copy[LANES];
    _mm256_storeu_si256((__m256i *)copy, halves);
    copy_bytes(x, copy, (size_t)count * sizeof *copy);
}

INLINE void store_bf16(bf16 *x, int count, f32s v) {
    store_halves(x, count, _mm256_permute4x64_epi64(_mm256_packus_epi32(narrow(v.low), narrow(v.high)), 0xd8));
}

INLINE f32s load_f16(const f16 *x, int count) {
    f16 copy[LANES];
    const __m128i *halves = whole(x, count, sizeof *x, copy);
    return (f32s){_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}

INLINE void store_f16(f16 *x, int count, f32s v) {
    store_halves(x, count,
                 _mm256_set_m128i(_mm256_cvtps_ph(v.high, _MM_FROUND_TO_NEAREST_INT),
                                  _mm256_cvtps_ph(v.low, _MM_FROUND_TO_NEAREST_INT)));
}

INLINE f32s load_i8(const int8_t *x, int count) {
    int8_t copy[LANES];
    const int8_t *bytes = whole(x, count, sizeof *x, copy);
    return (f32s){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)bytes))),
                  _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(bytes + 8))))};
}

INLINE void store_i8(int8_t *x, int count, f32s v) {
    const __m256i halves = _mm256_packs_epi32(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high));
    const __m256i ordered = _mm256_permute4x64_epi64(halves, 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
    int8_t copy[LANES];
    _mm_storeu_si128((__m128i *)copy, bytes);
    copy_bytes(x, copy, (size_t)least(count, LANES));
}

INLINE words load_words(const void *x) {
    return (words){_mm256_loadu_si256(x), _mm256_loadu_si256((const __m256i *)x + 1)};
}

INLINE words load_words_some(const void *x, int count) {
    if (count >= LANES) return load_words(x);
    const words mask = first_lanes(count);
    return (words){_mm256_maskload_epi32(x, mask.low), _mm256_maskload_epi32((const int *)x + 8, mask.high)};
}

INLINE words load_bf16_words(const bf16 *x, int count) {  // up to 32, two in a word
    bf16 copy[2 * LANES] = {0};
    copy_bytes(copy, x, (size_t)least(count, 2 * LANES) * sizeof *x);
    return load_words(copy);
}

INLINE f32s floats_of(words x) { return (f32s){_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }

INLINE __m256 even_of(__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
INLINE __m256 odd_of(__m256i x) {
    return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000)));
}

INLINE pair_lanes pairs_of(words x) {
    return (pair_lanes){{even_of(x.low), even_of(x.high)}, {odd_of(x.low), odd_of(x.high)}};
}

INLINE pair_lanes every_pair(const void *pair) {
    const __m256i all = _mm256_set1_epi32(*(const int32_t *)pair);
    return (pair_lanes){{even_of(all), even_of(all)}, {odd_of(all), odd_of(all)}};
}

// Adds a's first times b's first, then a's second times b's second.
INLINE f32s dot_pairs(f32s sum, pair_lanes a, pair_lanes b) {
    return multiply_add(a.odd, b.odd, multiply_add(a.even, b.even, sum));
}

INLINE void fetch(const void *x) { _mm_prefetch(x, _MM_HINT_T0); }

INLINE float greatest_lane(f32s x) {
    const __m256 eight = _mm256_max_ps(x.low, x.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Adds lane i to i + 8, then to i + 4, i + 2, i + 1.
INLINE float sum_lanes(f32s x) {
    const __m256 eight = _mm256_add_ps(x.low, x.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// Sums of sixteen vectors: sums[4 * i + j] is sum_lanes(x[i][j]).
INLINE void sum_tile(f32s x[4][4], float sums[16]) {
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) sums[4 * i + j] = sum_lanes(x[i][j]);
}
