// What is done row by row: each row alone, its sums in sixteen lanes and one fixed tree.
#include "rows.h"

#include <math.h>

#include "lanes.h"

#define CHUNK_ROWS 8  // what a thread takes at a time

INLINE __m512 load_row(const void *x, ptrdiff_t at, __mmask16 mask, bool is_bf16) {
    if (is_bf16) return widen(_mm256_maskz_loadu_epi16(mask, (const bf16 *)x + at));
    return _mm512_maskz_loadu_ps(mask, (const float *)x + at);
}

static void embed_row(const void *table, int32_t id, float *out, int size, bool is_bf16) {
    for (int d = 0; d < size; d += LANES) {
        const __mmask16 mask = first_lanes(size - d);
        _mm512_mask_storeu_ps(out + d, mask, load_row(table, (ptrdiff_t)id * size + d, mask, is_bf16));
    }
}

void embed(struct team *team, const void *table, const int32_t *ids, float *out, int rows, int size, bool is_bf16) {
    int first, end;
    while (claim(team, rows, CHUNK_ROWS, &first, &end))
        for (int i = first; i < end; i++) embed_row(table, ids[i], out + (ptrdiff_t)i * size, size, is_bf16);
    meet(team);
}

static void add_bias_row(float *x, const void *bias, int size, bool is_bf16) {
    for (int d = 0; d < size; d += LANES) {
        const __mmask16 mask = first_lanes(size - d);
        const __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, x + d), load_row(bias, d, mask, is_bf16));
        _mm512_mask_storeu_ps(x + d, mask, sum);
    }
}

void add_bias(struct team *team, float *x, const void *bias, int rows, int size, bool is_bf16) {
    int first, end;
    while (claim(team, rows, CHUNK_ROWS, &first, &end))
        for (int i = first; i < end; i++) add_bias_row(x + (ptrdiff_t)i * size, bias, size, is_bf16);
    meet(team);
}

static void norm_row(const float *x, const void *weight, void *out, int size, float eps, bool is_bf16) {
    __m512 squares = _mm512_setzero_ps();
    for (int d = 0; d < size; d += LANES) {
        const __m512 part = _mm512_maskz_loadu_ps(first_lanes(size - d), x + d);
        squares = _mm512_fmadd_ps(part, part, squares);
    }
    const __m512 scale = _mm512_set1_ps(1.0f / sqrtf(sum_lanes(squares) / (float)size + eps));
    for (int d = 0; d < size; d += LANES) {
        const __mmask16 mask = first_lanes(size - d);
        const __m512 y = _mm512_mul_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + d), scale),
                                       load_row(weight, d, mask, is_bf16));
        if (is_bf16) _mm256_mask_storeu_epi16((bf16 *)out + d, mask, narrow(y));
        else _mm512_mask_storeu_ps((float *)out + d, mask, y);
    }
}

static void norm_chosen(const float *x, const int32_t *chosen, const void *weight, void *out, int first, int end,
                        int size, float eps, bool is_bf16) {
    for (int i = first; i < end; i++)
        norm_row(x + (ptrdiff_t)(chosen ? chosen[i] : i) * size, weight,
                 (char *)out + (ptrdiff_t)i * size * (is_bf16 ? 2 : 4), size, eps, is_bf16);
}

void rms_norm(struct team *team, const float *x, const int32_t *chosen, const void *weight, void *out, int rows,
              int size, float eps, bool is_bf16) {
    int first, end;
    while (claim(team, rows, CHUNK_ROWS, &first, &end))
        norm_chosen(x, chosen, weight, out, first, end, size, eps, is_bf16);
    meet(team);
}

void norm_rows(const float *x, const int32_t *chosen, const void *weight, void *out, int rows, int size, float eps,
               bool is_bf16) {
    norm_chosen(x, chosen, weight, out, 0, rows, size, eps, is_bf16);
}
