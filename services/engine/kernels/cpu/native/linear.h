#ifndef HALOGEN_LINEAR_H
#define HALOGEN_LINEAR_H

#include <stdbool.h>

#include "team.h"

// What becomes of x @ w.T.
enum target {
    STORE,  // y = it, float32
    ADD,    // y += it, float32
    GATED,  // y = silu(first half of the columns) * second half, in the weights' type
};

// x is [rows, inner], w is [columns, inner], both bfloat16 or both float32 and contiguous; y is [rows, columns],
// or [rows, columns / 2] for GATED. Called by every member of a team; ends with a barrier.
void linear(struct team *team, const void *x, const void *w, void *y, int rows, int columns, int inner,
            bool is_bf16, enum target target);

#endif
