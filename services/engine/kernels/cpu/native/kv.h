// How keys and values lie in a block, and how they get there. Every function is for one kind that is known when it is
// compiled.
#ifndef HALOGEN_KV_H
#define HALOGEN_KV_H

#include <string.h>

#include "attention.h"
#include "lanes.h"

#define MOST_INT8 127.0f

// Whether keys and values lie in pairs.
INLINE bool is_paired(enum kv_kind kind) { return kind == KV_BF16 && MULTIPLIES_PAIRS; }

INLINE int width_of(enum kv_kind kind) { return kind == KV_F32 ? 4 : kind == KV_I8 ? 1 : 2; }

// Elements first .. first + 15; int8 without its scale.
INLINE f32s load_elements(const char *array, ptrdiff_t first, int count, enum kv_kind kind) {
    switch (kind) {
    case KV_BF16: return load_bf16((const bf16 *)array + first, count);
    case KV_F16: return load_f16((const f16 *)array + first, count);
    case KV_I8: return load_i8((const int8_t *)array + first, count);
    default: return load((const float *)array + first, count);
    }
}

INLINE void store_elements(char *array, ptrdiff_t first, int count, f32s x, enum kv_kind kind) {
    switch (kind) {
    case KV_BF16: store_bf16((bf16 *)array + first, count, x); break;
    case KV_F16: store_f16((f16 *)array + first, count, x); break;
    case KV_I8: store_i8((int8_t *)array + first, count, x); break;
    default: store((float *)array + first, count, x);
    }
}

// The scales behind a head's keys or values.
INLINE float *scales_of(const char *elements, int head_dim) {
    return (float *)(elements + (ptrdiff_t)BLOCK_TOKENS * head_dim);
}

// What a head's elements are divided by so that the greatest is 127. Not finite if one of them is not.
static float int8_scale(const float *x, int size) {
    f32s greatest = zeros(), poison = zeros();
    for (int d = 0; d < size; d += LANES) {
        const f32s part = load(x + d, size - d);
        greatest = larger(greatest, magnitude(part));
        poison = multiply_add(part, zeros(), poison);
    }
    return greatest_lane(greatest) / MOST_INT8 + sum_lanes(poison);
}

// A head's elements in the kind's type, one after the other; writes the scale where there is one.
INLINE void narrow_head(const float *x, int size, char *out, float *scale, enum kv_kind kind) {
    f32s times = everywhere(1.0f);
    if (kind == KV_I8) {
        *scale = int8_scale(x, size);
        times = everywhere(*scale > 0.0f ? 1.0f / *scale : 0.0f);
    }
    for (int d = 0; d < size; d += LANES) {
        const f32s part = load(x + d, size - d);
        store_elements(out, d, size - d, kind == KV_I8 ? multiply(part, times) : part, kind);
    }
}

// Copies `count` elements to places that are `stride` elements apart.
INLINE void spread(const char *from, char *to, int count, int stride, int width) {
    for (int i = 0; i < count; i++) memcpy(to + (ptrdiff_t)i * stride * width, from + i * width, (size_t)width);
}

INLINE void store_key(const float *key, char *keys, int slot, int size, enum kv_kind kind) {
    const int width = width_of(kind);
    char narrowed[size * width];
    narrow_head(key, size, narrowed, scales_of(keys, size) + slot, kind);
    if (is_paired(kind)) spread(narrowed, keys + slot * 4, size / 2, BLOCK_TOKENS, 4);
    else spread(narrowed, keys + slot * width, size, BLOCK_TOKENS, width);
}

// Paired values are multiplied two tokens at a time: where the pair has no second token yet, it is zero.
INLINE void store_value(const float *value, char *values, int slot, int size, bool is_last, enum kv_kind kind) {
    const int width = width_of(kind);
    if (!is_paired(kind)) {
        narrow_head(value, size, values + (ptrdiff_t)slot * size * width, scales_of(values, size) + slot, kind);
        return;
    }
    char narrowed[size * width], nothing[size * width];
    char *line = values + (ptrdiff_t)(slot / 2) * size * 4;
    narrow_head(value, size, narrowed, NULL, kind);
    spread(narrowed, line + slot % 2 * 2, size, 2, width);
    if (!is_last || slot % 2) return;
    memset(nothing, 0, sizeof nothing);
    spread(nothing, line + 2, size, 2, width);
}

#endif
