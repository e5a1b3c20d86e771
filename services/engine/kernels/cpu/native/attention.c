// Attention over paged keys and values. Each query meets its keys in absolute order, in two passes: scores and
// their softmax, then the sum of values; nothing depends on the other queries of the step.
#include "attention.h"

#include <math.h>

#include "kv.h"
#include "lanes.h"

#define ROWS 4  // computed at once
#if REGISTERS >= 32
#define AT_ONCE 2       // blocks whose keys are
#define MOST_VECTORS 4  // sixteens of a value's elements that are
#else
#define AT_ONCE 1
#define MOST_VECTORS 1
#endif

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

// Up to four rows of a tile with one kv head: queries, and where their results go.
struct rows {
    const char *queries[ROWS];
    void *mixed[ROWS];
    int lengths[ROWS];  // keys that each may see
    int keys;           // that the last of them may see, the most
    const char *first;  // the kv head's keys in block 0
    const int32_t *table;
    float *scores;  // [ROWS, stride]
    ptrdiff_t stride;
};

// Scores of `rows` queries with the keys of AT_ONCE blocks; lane i of out[r][b] is key i of block b.
INLINE void score_blocks(const char *const *queries, const char *const *keys, int rows, int head_dim,
                         enum kv_kind kind, f32s out[ROWS][AT_ONCE]) {
    for (int r = 0; r < rows; r++)
        for (int b = 0; b < AT_ONCE; b++) out[r][b] = zeros();
    const int steps = is_paired(kind) ? head_dim / 2 : head_dim;
    for (int d = 0; d < steps; d++)
        for (int b = 0; b < AT_ONCE; b++)
            if (is_paired(kind)) {
                const pair_lanes key = pairs_of(load_words(keys[b] + d * 64));
                for (int r = 0; r < rows; r++) out[r][b] = dot_pairs(out[r][b], key, every_pair(queries[r] + d * 4));
            } else {
                const f32s key = load_elements(keys[b], (ptrdiff_t)d * LANES, LANES, kind);
                for (int r = 0; r < rows; r++)
                    out[r][b] = multiply_add(key, everywhere(((const float *)queries[r])[d]), out[r][b]);
            }
}

INLINE void score_rows(const struct rows *q, int rows, const struct cache *cache, enum kv_kind kind) {
    const int blocks = (q->keys + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    const f32s scale = everywhere(1.0f / sqrtf((float)cache->head_dim));
    for (int first = 0; first < blocks; first += AT_ONCE) {
        f32s out[ROWS][AT_ONCE];
        const char *keys[AT_ONCE];
        for (int b = 0; b < AT_ONCE; b++)
            keys[b] = q->first + q->table[least(first + b, blocks - 1)] * cache->block_bytes;
        score_blocks(q->queries, keys, rows, cache->head_dim, kind, out);
        for (int r = 0; r < rows; r++)
            for (int b = 0; b < AT_ONCE; b++) {
                f32s scores = multiply(out[r][b], scale);
                if (kind == KV_I8) scores = multiply(scores, load_all(scales_of(keys[b], cache->head_dim)));
                store_all(q->scores + r * q->stride + (first + b) * BLOCK_TOKENS, scores);
            }
    }
}

static f32s greatest_score(const float *scores, int keys) {
    const f32s nothing = everywhere(-INFINITY);
    f32s greatest = nothing;
    for (int k = 0; k < keys; k += LANES) greatest = larger(greatest, load_or(scores + k, keys - k, nothing));
    return everywhere(greatest_lane(greatest));
}

// Turns a row's scores into weights, e^(score - greatest), in place and in bfloat16 where values are paired; zeros
// up to the end of the last block. Weights of int8 values are multiplied by the values' scales. Returns one over
// the weights' sum.
static float soften(const struct rows *q, int row, const struct cache *cache) {
    const enum kv_kind kind = cache->kind;
    float *scores = q->scores + row * q->stride;
    const int keys = q->lengths[row];
    const f32s top = greatest_score(scores, keys), nothing = everywhere(-INFINITY);
    f32s sum = zeros();
    for (int k = 0; k < q->keys; k += LANES) {
        const int count = keys > k ? keys - k : 0;
        f32s weights = keep(exp_lanes(subtract(load_or(scores + k, count, nothing), top)), count);
        sum = add(sum, weights);
        if (kind == KV_I8) {
            const char *values = q->first + q->table[k / BLOCK_TOKENS] * cache->block_bytes + cache->head_bytes;
            weights = keep(multiply(weights, load_all(scales_of(values, cache->head_dim))), count);
        }
        if (is_paired(kind)) store_bf16((bf16 *)scores + k, LANES, weights);
        else store_all(scores + k, weights);
    }
    return 1.0f / sum_lanes(sum);
}

// Adds weight times value over all keys, for `rows` queries and up to `vectors` times 16 elements of the head, of
// which the last vector has `last`.
INLINE void mix(const char *values, const struct rows *q, int rows, int vectors, int last, const struct cache *cache,
                enum kv_kind kind, f32s out[ROWS][MOST_VECTORS]) {
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) out[r][v] = zeros();
    const int width = is_paired(kind) ? 2 : 1, per_block = BLOCK_TOKENS / width;  // keys that one line holds
    const ptrdiff_t line_bytes = (ptrdiff_t)cache->head_dim * width * width_of(kind);
    const int lines = (q->keys + width - 1) / width;
    for (int line = 0; line < lines; line++) {
        const char *at =
            values + q->table[line / per_block] * cache->block_bytes + line % per_block * line_bytes;
        if (is_paired(kind)) {
            pair_lanes value[MOST_VECTORS];
            for (int v = 0; v < vectors; v++)
                value[v] = pairs_of(load_words_some(at + v * 64, v + 1 < vectors ? LANES : last));
            for (int r = 0; r < rows; r++) {
                const pair_lanes weight = every_pair(q->scores + r * q->stride + line);
                for (int v = 0; v < vectors; v++) out[r][v] = dot_pairs(out[r][v], value[v], weight);
            }
        } else {
            f32s value[MOST_VECTORS];
            for (int v = 0; v < vectors; v++)
                value[v] = load_elements(at, v * LANES, v + 1 < vectors ? LANES : last, kind);
            for (int r = 0; r < rows; r++) {
                const f32s weight = everywhere(q->scores[r * q->stride + line]);
                for (int v = 0; v < vectors; v++) out[r][v] = multiply_add(value[v], weight, out[r][v]);
            }
        }
    }
}

INLINE void mix_vectors(const struct rows *q, int d, int rows, int vectors, const struct cache *cache,
                        enum kv_kind kind, const float *scales) {
    const int last = least(LANES, cache->head_dim - d - (vectors - 1) * LANES);
    const char *values = q->first + cache->head_bytes + (ptrdiff_t)d * (is_paired(kind) ? 4 : width_of(kind));
    f32s sums[ROWS][MOST_VECTORS];
    // Where part of a vector goes through a copy, whole ones are spared it.
    if (MOST_VECTORS == 1 && last == LANES) mix(values, q, rows, vectors, LANES, cache, kind, sums);
    else mix(values, q, rows, vectors, last, cache, kind, sums);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            store_any(q->mixed[r], d + v * LANES, v + 1 < vectors ? LANES : last,
                      multiply(sums[r][v], everywhere(scales[r])), cache->mixes_bf16);
}

INLINE void mix_rows(const struct rows *q, int rows, const struct cache *cache, enum kv_kind kind,
                     const float *scales) {
    int d = 0;
#if REGISTERS >= 32
    for (; cache->head_dim - d > 3 * LANES; d += 4 * LANES) mix_vectors(q, d, rows, 4, cache, kind, scales);
    for (; cache->head_dim - d > LANES; d += 2 * LANES) mix_vectors(q, d, rows, 2, cache, kind, scales);
#endif
    for (; d < cache->head_dim; d += LANES) mix_vectors(q, d, rows, 1, cache, kind, scales);
}

INLINE void attend_rows(const struct rows *q, int rows, const struct cache *cache, enum kv_kind kind) {
    float scales[ROWS];
    score_rows(q, rows, cache, kind);
    for (int r = 0; r < rows; r++) scales[r] = soften(q, r, cache);
    mix_rows(q, rows, cache, kind, scales);
}

INLINE void attend_some(const struct rows *q, int rows, const struct cache *cache, enum kv_kind kind) {
    switch (rows) {
    case 4: attend_rows(q, 4, cache, kind); break;
    case 3: attend_rows(q, 3, cache, kind); break;
    case 2: attend_rows(q, 2, cache, kind); break;
    default: attend_rows(q, 1, cache, kind);
    }
}

// Elements i and i + head_dim / 2 turn together.
static void rotate(const float *x, const float *cos, const float *sin, int half, void *out, bool is_bf16) {
    for (int i = 0; i < half; i += LANES) {
        const int left = half - i;
        const f32s low = load(x + i, left), high = load(x + half + i, left);
        const f32s c = load(cos + i, left), s = load(sin + i, left);
        store_any(out, i, left, subtract(multiply(low, c), multiply(high, s)), is_bf16);
        store_any(out, half + i, left, add(multiply(high, c), multiply(low, s)), is_bf16);
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

// Queries are bfloat16 where keys are paired, else float32.
static ptrdiff_t query_bytes(const struct cache *cache) {
    return (ptrdiff_t)cache->head_dim * (is_paired(cache->kind) ? 2 : 4);
}

// One token with one kv head and the group of heads that shares it.
static void rotate_and_store(const struct attention *a, int token, int sequence, int kv_head) {
    const struct cache *cache = a->cache;
    const int size = cache->head_dim, group = cache->heads / cache->kv_heads;
    const int position = a->tokens->positions[token];
    const float *cos = a->cos + (ptrdiff_t)position * (size / 2), *sin = a->sin + (ptrdiff_t)position * (size / 2);
    const float *q = a->qkv + (ptrdiff_t)token * (cache->heads + 2 * cache->kv_heads) * size;
    const float *key = q + (cache->heads + kv_head) * size, *value = key + cache->kv_heads * size;
    const ptrdiff_t bytes = query_bytes(cache);
    char *queries = (char *)a->queries + (ptrdiff_t)token * cache->heads * bytes;
    for (int h = kv_head * group; h < (kv_head + 1) * group; h++)
        rotate(q + h * size, cos, sin, size / 2, queries + h * bytes, is_paired(cache->kind));
    const int32_t block = a->tokens->tables[(ptrdiff_t)sequence * a->tokens->table_width + position / BLOCK_TOKENS];
    float turned[size];
    rotate(key, cos, sin, size / 2, turned, false);
    store_token(cache, turned, value, cache->keys + block * cache->block_bytes + 2 * kv_head * cache->head_bytes,
                position % BLOCK_TOKENS, token + 1 == a->tokens->rows[sequence + 1]);
}

// One tile with one kv head: row i is query i / group with head i % group of the group.
INLINE void attend_kind(const struct attention *a, const struct tile *tile, int kv_head, float *scores,
                        enum kv_kind kind) {
    const struct cache *cache = a->cache;
    const int group = cache->heads / cache->kv_heads;
    struct rows q = {.first = cache->keys + 2 * kv_head * cache->head_bytes,
                     .table = a->tokens->tables + (ptrdiff_t)tile->sequence * a->tokens->table_width,
                     .scores = scores,
                     .stride = score_stride(a->tokens)};
    for (int first = 0; first < tile->count * group; first += ROWS) {
        const int rows = least(ROWS, tile->count * group - first);
        for (int r = 0; r < rows; r++) {
            const int token = tile->first + (first + r) / group, head = kv_head * group + (first + r) % group;
            const ptrdiff_t at = (ptrdiff_t)token * cache->heads + head;
            q.queries[r] = (const char *)a->queries + at * query_bytes(cache);
            q.mixed[r] = (char *)a->mixed + at * cache->head_dim * (cache->mixes_bf16 ? 2 : 4);
            q.lengths[r] = q.keys = a->tokens->positions[token] + 1;
        }
        attend_some(&q, rows, cache, kind);
    }
}

static void attend_tile(const struct attention *a, const struct tile *tile, int kv_head, float *scores) {
    switch (a->cache->kind) {
    case KV_BF16: attend_kind(a, tile, kv_head, scores, KV_BF16); break;
    case KV_F16: attend_kind(a, tile, kv_head, scores, KV_F16); break;
    case KV_I8: attend_kind(a, tile, kv_head, scores, KV_I8); break;
    default: attend_kind(a, tile, kv_head, scores, KV_F32);
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
