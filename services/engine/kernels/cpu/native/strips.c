#include "strips.h"

#include <string.h>

#include "rows.h"

static ptrdiff_t place_of(const struct strips *shape, int row) {
    return strip_start(shape, row / shape->height) + row % shape->height;
}

static void put(const bf16 *row, int inner, uint32_t *strips, const struct strips *shape, int place) {
    const ptrdiff_t rows = strip_rows(shape, place / shape->height);
    uint32_t *to = strips + place_of(shape, place);
    for (int k = 0; k < inner / 2; k++) memcpy(to + k * rows, row + 2 * k, 4);
    if (inner % 2) to[inner / 2 * rows] = row[inner - 1];
}

void to_strips(struct team *team, const bf16 *x, uint32_t *out, int rows, int inner) {
    const struct strips shape = strips_of(rows, inner);
    int first, end;
    while (claim(team, rows, shape.height, &first, &end))
        for (int i = first; i < end; i++) put(x + (ptrdiff_t)i * inner, inner, out, &shape, i);
    meet(team);
}

void from_strips(const uint32_t *x, bf16 *out, int rows, int inner) {
    const struct strips shape = strips_of(rows, inner);
    for (int i = 0; i < rows; i++)
        for (int k = 0; k < inner; k++) {
            const ptrdiff_t height = strip_rows(&shape, i / shape.height);
            out[(ptrdiff_t)i * inner + k] = ((const bf16 *)(x + place_of(&shape, i) + k / 2 * height))[k % 2];
        }
}

void norm_strips(const float *x, const int32_t *chosen, const void *weight, uint32_t *out,
                 const struct strips *shape, int first, int end, int size, float eps, bf16 *row) {
    for (int32_t i = first; i < end; i++) {
        const int32_t from = chosen ? chosen[i] : i;
        norm_rows(x, &from, weight, row, 1, size, eps, true);
        put(row, size, out, shape, i);
    }
}
