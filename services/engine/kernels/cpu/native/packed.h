// Products with packed weights, bfloat16 in panels of 32 columns of results: [panels][pairs of the inner dimension]
// [32][2], zero beyond the matrix. Memory is read in the order of addresses, whatever the number of rows.
#ifndef HALOGEN_PACKED_H
#define HALOGEN_PACKED_H

#include "linear.h"
#include "strips.h"
#include "team.h"

#define PANEL_COLUMNS 32

// x is in strips, w packed, of `columns` columns and x's inner dimension. y is [rows, columns] in float32 for STORE and
// ADD. For GATED, panels of gate and up take turns in w, `columns` counts both of them, and y becomes strips of
// columns / 2 elements. Called by every member; ends with a barrier.
void packed_linear(struct team *team, int member, const uint32_t *x, const void *w, void *y, int rows, int columns,
                   int inner, enum target target);

#endif
