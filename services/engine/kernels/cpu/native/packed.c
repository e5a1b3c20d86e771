// Products with packed weights. Each result is one sum over pairs of the inner dimension, from the first to the last:
// the same bits for every number of rows and every place among them.
#include "packed.h"

#define LINE_BYTES 128     // of a panel: one pair for each of 32 columns
#define SECOND_LEVEL 2     // cache that it comes to: the first has no room for a panel beside x
#define HALVES 2           // of a panel, 16 columns each
#define HALF_BYTES 64      // of a line

// Sums of `rows` rows with `halves` halves of a panel, from `first` on; as many bytes from `next` on are fetched.
INLINE void multiply_halves(const uint32_t *x, const char *panel, const char *next, int pairs, int rows, int first,
                            int halves, f32s out[STRIP_ROWS][HALVES]) {
    f32s sums[STRIP_ROWS][HALVES];
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = zeros();
    for (int k = 0; k < pairs; k++) {
        pair_lanes weights[HALVES];
        for (int h = 0; h < halves; h++) {
            const ptrdiff_t at = (ptrdiff_t)k * LINE_BYTES + (first + h) * HALF_BYTES;
            weights[h] = pairs_of(load_words(panel + at));
            __builtin_prefetch(next + at, 0, SECOND_LEVEL);
        }
#pragma GCC unroll 12
        for (int r = 0; r < rows; r++) {
            const pair_lanes pair = every_pair(x + k * rows + r);
            for (int h = 0; h < halves; h++) sums[r][h] = dot_pairs(sums[r][h], weights[h], pair);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < halves; h++) out[r][first + h] = sums[r][h];
}

// Sums of up to STRIP_ROWS rows with a panel: at once, or where registers do not hold them, one half after the other.
INLINE void multiply_strip(const uint32_t *x, const char *panel, const char *next, int pairs, int rows,
                           f32s sums[STRIP_ROWS][HALVES]) {
    if (REGISTERS >= 32 || rows <= 2) {
        multiply_halves(x, panel, next, pairs, rows, 0, HALVES, sums);
        return;
    }
    for (int h = 0; h < HALVES; h++) multiply_halves(x, panel, next, pairs, rows, h, 1, sums);
}

INLINE void store_sums(float *at, int count, f32s sums, bool is_added) {
    store(at, count, is_added ? add(load(at, count), sums) : sums);
}

INLINE void store_strip(float *y, ptrdiff_t stride, int rows, int columns, f32s sums[STRIP_ROWS][HALVES],
                        bool is_added) {
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++) {
        store_sums(y + r * stride, columns, sums[r][0], is_added);
        if (columns > LANES) store_sums(y + r * stride + LANES, columns - LANES, sums[r][1], is_added);
    }
}

#define CASE(height)                                                                           \
    case height: {                                                                             \
        f32s sums[STRIP_ROWS][HALVES];                                                         \
        multiply_strip(x, panel, next, pairs, height, sums);                                   \
        store_strip(y, stride, height, columns, sums, is_added);                               \
        break;                                                                                 \
    }

// One strip with one panel; its height is known to the compiler.
static void any_strip(const uint32_t *x, const char *panel, const char *next, float *y, ptrdiff_t stride, int pairs,
                      int rows, int columns, bool is_added) {
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4)
#if STRIP_ROWS == 12
        CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
}

// What to fetch while a strip uses a panel: the first what lies a little ahead, for a few rows less far, as measured;
// the second what will be used after `bytes` of panels.
INLINE const char *to_fetch(const char *panel, ptrdiff_t bytes, int strip, int rows) {
    if (strip == 0) return panel + (rows <= 4 ? 2048 : 8192);
    return strip == 1 ? panel + bytes : panel;
}

static void plain_panel(const uint32_t *x, const struct strips *shape, const char *panel, float *y, int columns,
                        int first, bool is_added) {
    const ptrdiff_t bytes = (ptrdiff_t)shape->pairs * LINE_BYTES;
    for (int s = 0; s < shape->count; s++)
        any_strip(x + strip_start(shape, s), panel, to_fetch(panel, bytes, s, strip_rows(shape, s)),
                  y + (ptrdiff_t)s * shape->height * columns + first, columns, shape->pairs, strip_rows(shape, s),
                  least(PANEL_COLUMNS, columns - first), is_added);
}

// silu(gate) * up of one strip, 32 columns from pair `first` on, into its strip of `pairs` pairs.
static void gate_strip(const float *gate, const float *up, uint32_t *strip, int rows, int first, int pairs) {
    const int count = least(PANEL_COLUMNS / 2, pairs - first);
    for (int r = 0; r < rows; r++) {
        uint32_t gated[PANEL_COLUMNS / 2];
        for (int half = 0; half < HALVES; half++) {
            const ptrdiff_t at = r * PANEL_COLUMNS + half * LANES;
            store_bf16((bf16 *)gated + half * LANES, LANES, multiply(silu(load_all(gate + at)), load_all(up + at)));
        }
        for (int i = 0; i < count; i++) strip[(ptrdiff_t)(first + i) * rows + r] = gated[i];
    }
}

static void gated_panels(const uint32_t *x, const struct strips *shape, const char *panels, uint32_t *y,
                         const struct strips *out, int pair) {
    const ptrdiff_t bytes = (ptrdiff_t)shape->pairs * LINE_BYTES;
    _Alignas(64) float gate[STRIP_ROWS * PANEL_COLUMNS], up[STRIP_ROWS * PANEL_COLUMNS];
    for (int s = 0; s < shape->count; s++) {
        const uint32_t *from = x + strip_start(shape, s);
        const int rows = strip_rows(shape, s);
        any_strip(from, panels, to_fetch(panels, 2 * bytes, s, rows), gate, PANEL_COLUMNS, shape->pairs, rows,
                  PANEL_COLUMNS, false);
        any_strip(from, panels + bytes, to_fetch(panels + bytes, 2 * bytes, s, rows), up, PANEL_COLUMNS,
                  shape->pairs, rows, PANEL_COLUMNS, false);
        gate_strip(gate, up, y + strip_start(out, s), rows, pair * PANEL_COLUMNS / 2, out->pairs);
    }
}

void packed_linear(struct team *team, int member, const uint32_t *x, const void *w, void *y, int rows, int columns,
                   int inner, enum target target) {
    const struct strips shape = strips_of(rows, inner), gated = strips_of(rows, columns / 2);
    const ptrdiff_t bytes = (ptrdiff_t)shape.pairs * LINE_BYTES;
    const int results = target == GATED ? columns / 2 : columns;
    int first, end;
    while (claim_near(team, member, (results + PANEL_COLUMNS - 1) / PANEL_COLUMNS, 1, &first, &end)) {
        if (target == GATED) gated_panels(x, &shape, (const char *)w + 2 * first * bytes, y, &gated, first);
        else
            plain_panel(x, &shape, (const char *)w + first * bytes, y, columns, first * PANEL_COLUMNS,
                        target == ADD);
    }
    meet(team);
}
