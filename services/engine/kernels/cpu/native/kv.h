// How keys and values lie in a block, and how they get there. Inline functions are for one kind that is known when they
// are compiled.
#ifndef HALOGEN_KV_H
#define HALOGEN_KV_H

#include "attention.h"
#include "lanes.h"

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

// The scales behind a head's keys or values.
INLINE float *scales_of(const char *elements, int head_dim) {
    return (float *)(elements + (ptrdiff_t)BLOCK_TOKENS * head_dim);
}

// Stores a token's key and value, float32, in a head's place of a block. `is_last`: the sequence has no token behind it.
void store_token(const struct cache *cache, const float *key, const float *value, char *keys, int slot, bool is_last);

#endif
