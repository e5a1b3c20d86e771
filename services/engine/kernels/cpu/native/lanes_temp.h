#ifndef LANES_TEMP
#define LANES_TEMP
#include "lanes.h"
// ---- until the lanes for both instruction sets are here
typedef __m512 f32s;
typedef __m512i words;
typedef __m512bh pair_lanes;
#define REGISTERS 32
INLINE f32s zeros(void) { return _mm512_setzero_ps(); }
INLINE f32s load(const float *at, int count) { return _mm512_maskz_loadu_ps(first_lanes(count), at); }
INLINE void store(float *at, int count, f32s x) { _mm512_mask_storeu_ps(at, first_lanes(count), x); }
INLINE f32s load_all(const float *at) { return _mm512_loadu_ps(at); }
INLINE void store_all(float *at, f32s x) { _mm512_storeu_ps(at, x); }
INLINE f32s add(f32s a, f32s b) { return _mm512_add_ps(a, b); }
INLINE void store_bf16(bf16 *at, int count, f32s x) { _mm256_mask_storeu_epi16(at, first_lanes(count), narrow(x)); }
INLINE words load_words(const void *at) { return _mm512_loadu_si512(at); }
INLINE pair_lanes pairs_of(words x) { return pairs(x); }
INLINE pair_lanes every_pair(const void *at) { return pairs(_mm512_set1_epi32(*(const int32_t *)at)); }
INLINE f32s dot_pairs(f32s sum, pair_lanes a, pair_lanes b) { return _mm512_dpbf16_ps(sum, a, b); }
INLINE void fetch(const void *at) { _mm_prefetch(at, _MM_HINT_T0); }
INLINE f32s silu(f32s x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 decay = exp_lanes(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
    __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    __m512 sigmoid = _mm512_div_ps(_mm512_mask_blend_ps(negative, one, decay), _mm512_add_ps(one, decay));
    return _mm512_mul_ps(x, sigmoid);
}
INLINE f32s multiply(f32s a, f32s b) { return _mm512_mul_ps(a, b); }

#endif
