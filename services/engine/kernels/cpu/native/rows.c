// What is done row by row: each row alone, its sums in sixteen lanes and one fixed tree.
#include "rows.h"

#include <math.h>

#include "lanes.h"

#define CHUNK_ROWS 8  // what a thread takes at a time

static void embed_row(const void *table, int32_t id, float *out, int size, bool is_bf16) {
    for (int d = 0; d < size; d += LANES)
        store(out + d, size - d, load_any(table, (ptrdiff_t)id * size + d, size - d, is_bf16));
}

void embed(struct team *team, const void *table, const int32_t *ids, float *out, int rows, int size, bool is_bf16) {
    int first, end;
    while (claim(team, rows, CHUNK_ROWS, &first, &end))
        for (int i = first; i < end; i++) embed_row(table, ids[i], out + (ptrdiff_t)i * size, size, is_bf16);
    meet(team);
}

static void add_bias_row(float *x, const void *bias, int size, bool is_bf16) {
    for (int d = 0; d < size; d += LANES)
        store(x + d, size - d, add(load(x + d, size - d), load_any(bias, d, size - d, is_bf16)));
}

void add_bias(struct team *team, float *x, const void *bias, int rows, int size, bool is_bf16) {
    int first, end;
    while (claim(team, rows, CHUNK_ROWS, &first, &end))
        for (int i = first; i < end; i++) add_bias_row(x + (ptrdiff_t)i * size, bias, size, is_bf16);
    meet(team);
}

static void norm_row(const float *x, const void *weight, void *out, int size, float eps, bool is_bf16) {
    f32s squares = zeros();
    for (int d = 0; d < size; d += LANES) {
        const f32s part = load(x + d, size - d);
        squares = multiply_add(part, part, squares);
    }
    const f32s scale = everywhere(1.0f / sqrtf(sum_lanes(squares) / (float)size + eps));
    for (int d = 0; d < size; d += LANES) {
        const f32s y = multiply(load(x + d, size - d), scale);
        store_any(out, d, size - d, multiply(y, load_any(weight, d, size - d, is_bf16)), is_bf16);
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
