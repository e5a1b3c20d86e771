// Rows of activations as packed products read them: in strips of a few rows, whose pairs of elements lie in the
// order in which they are multiplied.
#ifndef HALOGEN_STRIPS_H
#define HALOGEN_STRIPS_H

#include "lanes.h"
#include "team.h"

#if REGISTERS >= 32
#define STRIP_ROWS 12
#else
#define STRIP_ROWS 4
#endif

// `rows` rows of `pairs` pairs of bfloat16, in `count` strips of `height` rows; the last may have fewer. A strip of h
// rows is [pairs][h] words, each a pair, and strips lie end to end: so one row alone lies as it always does. The last
// pair of a row of odd length has a zero.
struct strips {
    int rows, pairs, count, height;
};

INLINE struct strips strips_of(int rows, int inner) {
    const int count = (rows + STRIP_ROWS - 1) / STRIP_ROWS;
    return (struct strips){rows, (inner + 1) / 2, count, count ? (rows + count - 1) / count : 1};
}

INLINE size_t strips_bytes(int rows, int inner) { return (size_t)rows * (size_t)((inner + 1) / 2) * 4; }

INLINE int strip_rows(const struct strips *s, int strip) { return least(s->height, s->rows - strip * s->height); }

// The first word of a strip, in words.
INLINE ptrdiff_t strip_start(const struct strips *s, int strip) {
    return (ptrdiff_t)strip * s->height * s->pairs;
}

// Lays rows [rows, inner] into strips. Called by every member; ends with a barrier.
void to_strips(struct team *team, const bf16 *x, uint32_t *out, int rows, int inner);

// The opposite, by one member alone: for tests.
void from_strips(const uint32_t *x, bf16 *out, int rows, int inner);

// Norms rows first .. end - 1 as norm_rows() does, into strips; `row` has place for one row.
void norm_strips(const float *x, const int32_t *chosen, const void *weight, uint32_t *out,
                 const struct strips *shape, int first, int end, int size, float eps, bf16 *row);

#endif
