#ifndef HALOGEN_ROWS_H
#define HALOGEN_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "team.h"

// All but norm_rows() are called by every member of a team and end with a barrier.

// out[i] = table[ids[i]] in float32; table is [entries, size].
void embed(struct team *team, const void *table, const int32_t *ids, float *out, int rows, int size, bool is_bf16);

// Adds `bias` to every row of x, [rows, size] in float32; bias is bfloat16 or float32.
void add_bias(struct team *team, float *x, const void *bias, int rows, int size, bool is_bf16);

// out[i] = x / rms(x) * weight for row chosen[i] of x, or row i where `chosen` is null; in weight's type.
void rms_norm(struct team *team, const float *x, const int32_t *chosen, const void *weight, void *out, int rows,
              int size, float eps, bool is_bf16);

// The same by one member alone.
void norm_rows(const float *x, const int32_t *chosen, const void *weight, void *out, int rows, int size, float eps,
               bool is_bf16);

#endif
