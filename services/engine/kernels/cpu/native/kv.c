#include "kv.h"

#include <string.h>

#define MOST_INT8 127.0f

INLINE void store_elements(char *array, ptrdiff_t first, int count, f32s x, enum kv_kind kind) {
    switch (kind) {
    case KV_BF16: store_bf16((bf16 *)array + first, count, x); break;
    case KV_F16: store_f16((f16 *)array + first, count, x); break;
    case KV_I8: store_i8((int8_t *)array + first, count, x); break;
    default: store((float *)array + first, count, x);
    }
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

INLINE void store_kind(const float *key, const float *value, char *keys, ptrdiff_t head_bytes, int slot, int size,
                       bool is_last, enum kv_kind kind) {
    store_key(key, keys, slot, size, kind);
    store_value(value, keys + head_bytes, slot, size, is_last, kind);
}

void store_token(const struct cache *cache, const float *key, const float *value, char *keys, int slot, bool is_last) {
    const int size = cache->head_dim;
    switch (cache->kind) {
    case KV_BF16: store_kind(key, value, keys, cache->head_bytes, slot, size, is_last, KV_BF16); break;
    case KV_F16: store_kind(key, value, keys, cache->head_bytes, slot, size, is_last, KV_F16); break;
    case KV_I8: store_kind(key, value, keys, cache->head_bytes, slot, size, is_last, KV_I8); break;
    default: store_kind(key, value, keys, cache->head_bytes, slot, size, is_last, KV_F32);
    }
}
