// Attention over paged keys and values. Each query meets its keys in absolute order, in two passes: scores and
// their softmax, then the sum of values; nothing depends on the other queries of the step.
#include "attention.h"

#include <math.h>

#include "lanes.h"

#define ROWS 4  // computed at once

int tile_queries(const struct cache *cache) {
    const int group = cache->heads / cache->kv_heads;
    return group >= TILE_ROWS ? 1 : TILE_ROWS / group;
}

int cut_tiles(const struct tokens *tokens, int queries, struct tile *tiles) {
    int count = 0;
    for (int s = 0; s < tokens->sequences; s++)
        for (int first = tokens->rows[s]; first < tokens->rows[s + 1]; first += queries)
            tiles[count++] = (struct tile){first, least(queries, tokens->rows[s + 1] - first), s};
    return count;
}

// Scores of a row reach to the end of the pair of blocks that holds its last key.
static ptrdiff_t score_stride(const struct tokens *tokens) {
    return (ptrdiff_t)(tokens->table_width + 1) / 2 * 2 * BLOCK_TOKENS;
}

static int most_rows(const struct cache *cache) {
    return tile_queries(cache) * (cache->heads / cache->kv_heads);
}

size_t attend_scratch(const struct cache *cache, const struct tokens *tokens) {
    return (size_t)(score_stride(tokens) * most_rows(cache));
}

// Scores of `rows` queries with the keys of two blocks; lane i of out[r][b] is key i of block b.
INLINE void score_blocks(const char *const *queries, const char *first, const char *second, int rows, int head_dim,
                         bool is_bf16, __m512 out[ROWS][2]) {
    for (int r = 0; r < rows; r++) out[r][0] = out[r][1] = _mm512_setzero_ps();
    const int steps = is_bf16 ? head_dim / 2 : head_dim;
    for (int d = 0; d < steps; d++) {
        const __m512i one = _mm512_loadu_si512(first + d * 64), two = _mm512_loadu_si512(second + d * 64);
        for (int r = 0; r < rows; r++) {
            const __m512i query = _mm512_set1_epi32(((const int32_t *)queries[r])[d]);
            if (is_bf16) {
                out[r][0] = _mm512_dpbf16_ps(out[r][0], pairs(one), pairs(query));
                out[r][1] = _mm512_dpbf16_ps(out[r][1], pairs(two), pairs(query));
            } else {
                out[r][0] = _mm512_fmadd_ps(_mm512_castsi512_ps(one), _mm512_castsi512_ps(query), out[r][0]);
                out[r][1] = _mm512_fmadd_ps(_mm512_castsi512_ps(two), _mm512_castsi512_ps(query), out[r][1]);
            }
        }
    }
}

INLINE void score_rows(const char *const *queries, const char *keys, const int32_t *table, int blocks, int rows,
                       const struct cache *cache, bool is_bf16, float *scores, ptrdiff_t stride, float scale) {
    for (int b = 0; b < blocks; b += 2) {
        __m512 out[ROWS][2];
        const char *first = keys + table[b] * cache->block_bytes;
        const char *second = b + 1 < blocks ? keys + table[b + 1] * cache->block_bytes : first;
        score_blocks(queries, first, second, rows, cache->head_dim, is_bf16, out);
        for (int r = 0; r < rows; r++)
            for (int half = 0; half < 2; half++)
                _mm512_storeu_ps(scores + r * stride + (b + half) * BLOCK_TOKENS,
                                 _mm512_mul_ps(out[r][half], _mm512_set1_ps(scale)));
    }
}

// Turns a row's scores into weights, e^(score - greatest), in place and in the cache's type; zeros up to `until`.
// Returns one over their sum.
static float soften(float *scores, int keys, int until, bool is_bf16) {
    const __m512 nothing = _mm512_set1_ps(-INFINITY);
    __m512 greatest = nothing, sum = _mm512_setzero_ps();
    for (int k = 0; k < keys; k += LANES) {
        const __mmask16 mask = first_lanes(keys - k);
        greatest = _mm512_max_ps(greatest, _mm512_mask_loadu_ps(nothing, mask, scores + k));
    }
    const __m512 top = _mm512_set1_ps(_mm512_reduce_max_ps(greatest));
    for (int k = 0; k < until; k += LANES) {
        const __mmask16 mask = keys > k ? first_lanes(keys - k) : 0;
        __m512 weights = exp_lanes(_mm512_sub_ps(_mm512_mask_loadu_ps(nothing, mask, scores + k), top));
        weights = _mm512_maskz_mov_ps(mask, weights);
        sum = _mm512_add_ps(sum, weights);
        if (is_bf16) _mm256_storeu_si256((__m256i *)((bf16 *)scores + k), narrow(weights));
        else _mm512_storeu_ps(scores + k, weights);
    }
    return 1.0f / sum_lanes(sum);
}

// Adds weight times value over all keys, for `rows` queries and up to `vectors` times 16 elements of the head.
INLINE void mix(const char *values, const int32_t *table, int keys, int rows, int vectors, __mmask16 last,
                const struct cache *cache, bool is_bf16, const float *weights, ptrdiff_t stride,
                __m512 out[ROWS][4]) {
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) out[r][v] = _mm512_setzero_ps();
    const int width = is_bf16 ? 2 : 1, per_block = BLOCK_TOKENS / width;  // keys that one multiplication takes
    const int lines = (keys + width - 1) / width;
    for (int line = 0; line < lines; line++) {
        const char *at = values + table[line / per_block] * cache->block_bytes +
                         (ptrdiff_t)(line % per_block) * cache->head_dim * 4;
        __m512i value[4];
        for (int v = 0; v < vectors; v++)
            value[v] = _mm512_maskz_loadu_epi32(v + 1 < vectors ? 0xffff : last, at + v * 64);
        for (int r = 0; r < rows; r++) {
            const __m512i weight = _mm512_set1_epi32(((const int32_t *)(weights + r * stride))[line]);
            for (int v = 0; v < vectors; v++)
                if (is_bf16) out[r][v] = _mm512_dpbf16_ps(out[r][v], pairs(value[v]), pairs(weight));
                else
                    out[r][v] =
                        _mm512_fmadd_ps(_mm512_castsi512_ps(value[v]), _mm512_castsi512_ps(weight), out[r][v]);
        }
    }
}

INLINE void store_row(void *out, int at, __m512 x, __mmask16 mask, bool is_bf16) {
    if (is_bf16) _mm256_mask_storeu_epi16((bf16 *)out + at, mask, narrow(x));
    else _mm512_mask_storeu_ps((float *)out + at, mask, x);
}

INLINE void mix_rows(const char *values, const int32_t *table, int keys, int rows, const struct cache *cache,
                     bool is_bf16, const float *weights, ptrdiff_t stride, const float *scales, void *const *out) {
    for (int d = 0; d < cache->head_dim; d += 4 * LANES) {
        const int left = cache->head_dim - d, vectors = least(4, (left + LANES - 1) / LANES);
        const __mmask16 last = first_lanes(left - (vectors - 1) * LANES);
        const char *part = values + (ptrdiff_t)d * 4;
        __m512 sums[ROWS][4];
        switch (vectors) {
        case 4: mix(part, table, keys, rows, 4, last, cache, is_bf16, weights, stride, sums); break;
        case 3: mix(part, table, keys, rows, 3, last, cache, is_bf16, weights, stride, sums); break;
        case 2: mix(part, table, keys, rows, 2, last, cache, is_bf16, weights, stride, sums); break;
        default: mix(part, table, keys, rows, 1, last, cache, is_bf16, weights, stride, sums);
        }
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < vectors; v++)
                store_row(out[r], d + v * LANES, _mm512_mul_ps(sums[r][v], _mm512_set1_ps(scales[r])),
                          v + 1 < vectors ? 0xffff : last, is_bf16);
    }
}

// Up to four rows of a tile, start to end. `lengths` are the keys that each may see, none more than `keys`.
INLINE void attend_rows(const char *const *queries, void *const *out, const int *lengths, int keys, int rows,
                        const char *first_keys, const int32_t *table, const struct cache *cache, bool is_bf16,
                        float *scores, ptrdiff_t stride) {
    float scales[ROWS];
    const float scale = 1.0f / sqrtf((float)cache->head_dim);
    const int blocks = (keys + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    score_rows(queries, first_keys, table, blocks, rows, cache, is_bf16, scores, stride, scale);
    for (int r = 0; r < rows; r++)
        scales[r] = soften(scores + r * stride, lengths[r], blocks * BLOCK_TOKENS, is_bf16);
    mix_rows(first_keys + cache->value_bytes, table, keys, rows, cache, is_bf16, scores, stride, scales, out);
}

INLINE void attend_any_rows(const char *const *queries, void *const *out, const int *lengths, int keys, int rows,
                            const char *first_keys, const int32_t *table, const struct cache *cache, bool is_bf16,
                            float *scores, ptrdiff_t stride) {
    switch (rows) {
    case 4: attend_rows(queries, out, lengths, keys, 4, first_keys, table, cache, is_bf16, scores, stride); break;
    case 3: attend_rows(queries, out, lengths, keys, 3, first_keys, table, cache, is_bf16, scores, stride); break;
    case 2: attend_rows(queries, out, lengths, keys, 2, first_keys, table, cache, is_bf16, scores, stride); break;
    default: attend_rows(queries, out, lengths, keys, 1, first_keys, table, cache, is_bf16, scores, stride);
    }
}

// Elements i and i + head_dim / 2 turn together.
INLINE void rotate(const float *x, const float *cos, const float *sin, int half, void *out, bool is_bf16) {
    for (int i = 0; i < half; i += LANES) {
        const __mmask16 mask = first_lanes(half - i);
        const __m512 low = _mm512_maskz_loadu_ps(mask, x + i), high = _mm512_maskz_loadu_ps(mask, x + half + i);
        const __m512 c = _mm512_maskz_loadu_ps(mask, cos + i), s = _mm512_maskz_loadu_ps(mask, sin + i);
        store_row(out, i, _mm512_sub_ps(_mm512_mul_ps(low, c), _mm512_mul_ps(high, s)), mask, is_bf16);
        store_row(out, half + i, _mm512_add_ps(_mm512_mul_ps(high, c), _mm512_mul_ps(low, s)), mask, is_bf16);
    }
}

static void store_bf16(const bf16 *key, const float *value, char *keys, char *values, int slot, int head_dim,
                       bool is_last) {
    int32_t *key_pairs = (int32_t *)keys;
    for (int i = 0; i < head_dim / 2; i++) key_pairs[i * BLOCK_TOKENS + slot] = ((const int32_t *)key)[i];
    bf16 *line = (bf16 *)values + (ptrdiff_t)(slot / 2) * head_dim * 2 + slot % 2;
    for (int d = 0; d < head_dim; d += LANES) {
        const __mmask16 mask = first_lanes(head_dim - d);
        bf16 narrowed[LANES];
        _mm256_storeu_si256((__m256i *)narrowed, narrow(_mm512_maskz_loadu_ps(mask, value + d)));
        for (int i = 0; i < least(LANES, head_dim - d); i++) {
            line[2 * (d + i)] = narrowed[i];
            // Values are multiplied in pairs of tokens: where the pair has no second token yet, it is zero.
            if (is_last && slot % 2 == 0) line[2 * (d + i) + 1] = 0;
        }
    }
}

static void store_f32(const float *key, const float *value, char *keys, char *values, int slot, int head_dim) {
    for (int d = 0; d < head_dim; d++) {
        ((float *)keys)[d * BLOCK_TOKENS + slot] = key[d];
        ((float *)values)[(ptrdiff_t)slot * head_dim + d] = value[d];
    }
}

static int sequence_of(const struct tokens *tokens, int token) {
    int low = 0, high = tokens->sequences;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (tokens->rows[middle] <= token) low = middle;
        else high = middle;
    }
    return low;
}

// One token with one kv head and the group of heads that shares it.
static void rotate_and_store(const struct attention *a, int token, int sequence, int kv_head) {
    const struct cache *cache = a->cache;
    const int size = cache->head_dim, width = cache->is_bf16 ? 2 : 4, group = cache->heads / cache->kv_heads;
    const int position = a->tokens->positions[token], slot = position % BLOCK_TOKENS;
    const float *cos = a->cos + (ptrdiff_t)position * (size / 2), *sin = a->sin + (ptrdiff_t)position * (size / 2);
    const float *q = a->qkv + (ptrdiff_t)token * (cache->heads + 2 * cache->kv_heads) * size;
    const float *key = q + (cache->heads + kv_head) * size, *value = key + cache->kv_heads * size;
    for (int h = kv_head * group; h < (kv_head + 1) * group; h++)
        rotate(q + h * size, cos, sin, size / 2,
               (char *)a->queries + ((ptrdiff_t)token * cache->heads + h) * size * width, cache->is_bf16);
    const int32_t block = a->tokens->tables[(ptrdiff_t)sequence * a->tokens->table_width + position / BLOCK_TOKENS];
    char *keys = cache->keys + block * cache->block_bytes + (ptrdiff_t)kv_head * size * width * 2 * BLOCK_TOKENS;
    float turned[size];
    rotate(key, cos, sin, size / 2, turned, cache->is_bf16);
    if (cache->is_bf16)
        store_bf16((bf16 *)turned, value, keys, keys + cache->value_bytes, slot, size,
                   token + 1 == a->tokens->rows[sequence + 1]);
    else store_f32(turned, value, keys, keys + cache->value_bytes, slot, size);
}

// One tile with one kv head: row i is query i / group with head i % group of the group.
static void attend_tile(const struct attention *a, const struct tile *tile, int kv_head, float *scores) {
    const struct cache *cache = a->cache;
    const int group = cache->heads / cache->kv_heads, width = cache->is_bf16 ? 2 : 4;
    const ptrdiff_t head_bytes = (ptrdiff_t)cache->head_dim * width, stride = score_stride(a->tokens);
    const char *keys = cache->keys + kv_head * head_bytes * 2 * BLOCK_TOKENS;
    const int32_t *table = a->tokens->tables + (ptrdiff_t)tile->sequence * a->tokens->table_width;
    for (int first = 0; first < tile->count * group; first += ROWS) {
        const int rows = least(ROWS, tile->count * group - first);
        const char *from[ROWS];
        void *to[ROWS];
        int lengths[ROWS];
        for (int r = 0; r < rows; r++) {
            const int token = tile->first + (first + r) / group, head = kv_head * group + (first + r) % group;
            const ptrdiff_t at = ((ptrdiff_t)token * cache->heads + head) * head_bytes;
            from[r] = (const char *)a->queries + at;
            to[r] = (char *)a->mixed + at;
            lengths[r] = a->tokens->positions[token] + 1;
        }
        const int most = lengths[rows - 1];
        if (cache->is_bf16)
            attend_any_rows(from, to, lengths, most, rows, keys, table, cache, true, scores, stride);
        else attend_any_rows(from, to, lengths, most, rows, keys, table, cache, false, scores, stride);
    }
}

// A tile that is all of its sequence's tokens can be rotated, stored and attended to in one go.
static void rotate_tile(const struct attention *a, const struct tile *tile, int kv_head) {
    for (int t = tile->first; t < tile->first + tile->count; t++) rotate_and_store(a, t, tile->sequence, kv_head);
}

void attend(struct team *team, const struct attention *a, float *scratch) {
    const int kv_heads = a->cache->kv_heads;
    const bool in_one_go = a->tile_count == a->tokens->sequences;
    int item, end;
    if (!in_one_go) {
        while (claim(team, a->tokens->count * kv_heads, kv_heads, &item, &end))
            for (; item < end; item++)
                rotate_and_store(a, item / kv_heads, sequence_of(a->tokens, item / kv_heads), item % kv_heads);
        meet(team);
    }
    while (claim(team, a->tile_count * kv_heads, 1, &item, &end)) {
        const struct tile *tile = a->tiles + item / kv_heads;
        if (in_one_go) rotate_tile(a, tile, item % kv_heads);
        attend_tile(a, tile, item % kv_heads, scratch);
    }
    meet(team);
}
