// One decoder step, computed by a team; every operation ends with all members meeting.
#include "llama.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "attention.h"
#include "lanes.h"
#include "linear.h"
#include "packed.h"
#include "rows.h"
#include "strips.h"
#include "team.h"

// Up to so many rows, every member norms all of them for itself rather than wait for the others' share.
#define FEW_ROWS 16

// Everything between the weights and the logits.
struct scratch {
    float *residual, *qkv, *scores;
    char *hidden;  // of all members, or one part for each where there are few rows
    void *queries, *mixed, *gated;
    void *strips;  // what packed products read of `mixed`
    char *norms;   // one row for each member, on its way into strips
    struct tile *tiles;
    size_t scores_per_member, hidden_per_member, norms_per_member;
    char *end;
};

static char *take(char **next, size_t bytes) {
    char *taken = *next;
    *next += (bytes + 63) / 64 * 64;
    return taken;
}

static struct cache cache_of(const struct halogen_model *model, const struct halogen_step *step, int layer) {
    const ptrdiff_t head = model->kv_head_bytes;
    return (struct cache){.keys = (char *)step->blocks + 2 * head * model->kv_heads * layer,
                          .block_bytes = step->block_bytes,
                          .head_bytes = head,
                          .heads = model->heads,
                          .kv_heads = model->kv_heads,
                          .head_dim = model->head_dim,
                          .kind = (enum kv_kind)model->kv_kind,
                          .mixes_bf16 = model->is_bf16};
}

static struct tokens tokens_of(const struct halogen_step *step) {
    return (struct tokens){step->tokens, step->sequences, step->table_width, step->positions, step->rows,
                           step->tables};
}

static struct scratch lay_out(const struct halogen_model *m, const struct halogen_step *step, char *base,
                              int threads) {
    const size_t rows = (size_t)step->tokens, width = m->is_bf16 ? 2 : 4;
    const size_t q = (size_t)m->heads * m->head_dim, kv = (size_t)m->kv_heads * m->head_dim;
    const struct cache cache = cache_of(m, step, 0);
    const struct tokens tokens = tokens_of(step);
    struct scratch s;
    s.residual = (float *)take(&base, rows * m->hidden * 4);
    s.qkv = (float *)take(&base, rows * (q + 2 * kv) * 4);
    const size_t few = rows < FEW_ROWS ? rows : FEW_ROWS;
    const size_t even = (size_t)(m->hidden + 1) / 2 * 2;
    s.hidden_per_member = (few * even * width + 63) / 64 * 64;
    const size_t private = s.hidden_per_member * (size_t)threads, shared = rows * even * width;
    s.hidden = take(&base, private > shared ? private : shared);
    s.queries = take(&base, rows * q * 4);
    s.mixed = take(&base, rows * q * width);
    s.gated = take(&base, rows * (size_t)(m->intermediate + 1) / 2 * 2 * width);
    s.strips = take(&base, m->is_packed ? strips_bytes(step->tokens, (int)q) : 0);
    s.norms_per_member = (even * width + 63) / 64 * 64;
    s.norms = take(&base, s.norms_per_member * (size_t)threads);
    s.tiles = (struct tile *)take(&base, rows * sizeof(struct tile));
    s.scores_per_member = (attend_scratch(&cache, &tokens) + 15) / 16 * 16;
    s.scores = (float *)take(&base, s.scores_per_member * (size_t)threads * 4);
    s.end = base;
    return s;
}

int64_t halogen_scratch_bytes(const struct team *team, const struct halogen_model *model,
                              const struct halogen_step *step) {
    return lay_out(model, step, NULL, team_size(team)).end - (char *)NULL;
}

// A step under way, as every member sees it.
struct work {
    const struct halogen_model *model;
    const struct halogen_step *step;
    struct scratch scratch;
    struct tokens tokens;
    int tile_count;
    float *logits;
};

// Norms rows first .. end - 1 of the residual for the next product.
static void norm_some(const struct work *work, int member, const void *weight, const int32_t *chosen, void *out,
                      int rows, int first, int end) {
    const struct halogen_model *m = work->model;
    const struct scratch *s = &work->scratch;
    const struct strips shape = strips_of(rows, m->hidden);
    bf16 *row = (bf16 *)(s->norms + s->norms_per_member * (size_t)member);
    norm_strips(s->residual, chosen, weight, out, &shape, first, end, m->hidden, m->eps, row);
}

static void norm_packed(struct team *team, int member, const struct work *work, const void *weight,
                        const int32_t *chosen, void *out, int rows) {
    int first, end;
    while (claim(team, rows, STRIP_ROWS, &first, &end))
        norm_some(work, member, weight, chosen, out, rows, first, end);
    meet(team);
}

// Norms rows of the residual; returns where this member finds them.
static const void *norm(struct team *team, int member, const struct work *work, const void *weight,
                        const int32_t *chosen, int rows) {
    const struct halogen_model *m = work->model;
    const struct scratch *s = &work->scratch;
    char *own = s->hidden + s->hidden_per_member * (size_t)member;
    if (rows <= FEW_ROWS) {
        if (m->is_packed) norm_some(work, member, weight, chosen, own, rows, 0, rows);
        else norm_rows(s->residual, chosen, weight, own, rows, m->hidden, m->eps, m->is_bf16);
        return own;
    }
    if (m->is_packed) norm_packed(team, member, work, weight, chosen, s->hidden, rows);
    else rms_norm(team, s->residual, chosen, weight, s->hidden, rows, m->hidden, m->eps, m->is_bf16);
    return s->hidden;
}

static void product(struct team *team, int member, const struct halogen_model *m, const void *x, const void *w,
                    void *y, int rows, int columns, int inner, enum target target) {
    if (m->is_packed) packed_linear(team, member, x, w, y, rows, columns, inner, target);
    else linear(team, x, w, y, rows, columns, inner, m->is_bf16, target);
}

// What attention gave, as the next product reads it.
static const void *mixed(struct team *team, const struct work *work, int inner) {
    const struct scratch *s = &work->scratch;
    const int rows = work->tokens.count;
    if (!work->model->is_packed || rows == 1) return s->mixed;
    to_strips(team, s->mixed, s->strips, rows, inner);
    return s->strips;
}

static void attention_half(struct team *team, int member, const struct work *work, int layer) {
    const struct halogen_model *m = work->model;
    const struct halogen_layer *w = m->layers + layer;
    const struct scratch *s = &work->scratch;
    const struct cache cache = cache_of(m, work->step, layer);
    const struct attention attention = {&cache, &work->tokens, s->tiles, work->tile_count, s->qkv,
                                        m->cos, m->sin,        s->queries, s->mixed};
    const int rows = work->tokens.count, q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    const void *hidden = norm(team, member, work, w->attention_norm, NULL, rows);
    product(team, member, m, hidden, w->qkv, s->qkv, rows, q + 2 * kv, m->hidden, STORE);
    if (w->qkv_bias) add_bias(team, s->qkv, w->qkv_bias, rows, q + 2 * kv, m->is_bf16);
    attend(team, &attention, s->scores + s->scores_per_member * (size_t)member);
    product(team, member, m, mixed(team, work, q), w->output, s->residual, rows, m->hidden, q, ADD);
}

static void mlp_half(struct team *team, int member, const struct work *work, int layer) {
    const struct halogen_model *m = work->model;
    const struct halogen_layer *w = m->layers + layer;
    const struct scratch *s = &work->scratch;
    const int rows = work->tokens.count;
    const void *hidden = norm(team, member, work, w->mlp_norm, NULL, rows);
    product(team, member, m, hidden, w->gate_up, s->gated, rows, 2 * m->intermediate, m->hidden, GATED);
    product(team, member, m, s->gated, w->down, s->residual, rows, m->hidden, m->intermediate, ADD);
}

static void compute(struct team *team, int member, void *argument) {
    const struct work *work = argument;
    const struct halogen_model *m = work->model;
    const struct halogen_step *step = work->step;
    embed(team, m->embedding, step->token_ids, work->scratch.residual, step->tokens, m->hidden, m->is_bf16);
    for (int layer = 0; layer < m->layer_count; layer++) {
        attention_half(team, member, work, layer);
        mlp_half(team, member, work, layer);
    }
    const void *hidden = norm(team, member, work, m->norm, step->sample_rows, step->samples);
    product(team, member, m, hidden, m->head, work->logits, step->samples, m->vocabulary, m->hidden, STORE);
}

void halogen_step_llama(struct team *team, const struct halogen_model *model, const struct halogen_step *step,
                        void *scratch, float *logits) {
    const struct cache cache = cache_of(model, step, 0);
    struct work work = {.model = model,
                        .step = step,
                        .scratch = lay_out(model, step, scratch, team_size(team)),
                        .tokens = tokens_of(step),
                        .logits = logits};
    work.tile_count = cut_tiles(&work.tokens, tile_queries(&cache), work.scratch.tiles);
    run_team(team, compute, &work);
}

struct product {
    const void *x, *w;
    void *y;
    int rows, columns, inner, is_bf16, target;
};

static void run_product(struct team *team, int member, void *argument) {
    const struct product *p = argument;
    (void)member;
    linear(team, p->x, p->w, p->y, p->rows, p->columns, p->inner, p->is_bf16, (enum target)p->target);
}

void halogen_linear(struct team *team, const void *x, const void *w, void *y, int32_t rows, int32_t columns,
                    int32_t inner, int32_t is_bf16, int32_t target) {
    struct product product = {x, w, y, rows, columns, inner, is_bf16, target};
    run_team(team, run_product, &product);
}

struct packed_product {
    const bf16 *x;
    const void *w;
    uint32_t *strips, *gated;
    void *y;
    int rows, columns, inner, target;
};

static void run_packed_product(struct team *team, int member, void *argument) {
    const struct packed_product *p = argument;
    to_strips(team, p->x, p->strips, p->rows, p->inner);
    packed_linear(team, member, p->strips, p->w, p->target == GATED ? p->gated : p->y, p->rows, p->columns, p->inner,
                  (enum target)p->target);
    if (p->target == GATED && member == 0) from_strips(p->gated, p->y, p->rows, p->columns / 2);
}

void halogen_packed_linear(struct team *team, const void *x, const void *w, void *y, int32_t rows, int32_t columns,
                           int32_t inner, int32_t target, void *scratch) {
    uint32_t *gated = (uint32_t *)((char *)scratch + strips_bytes(rows, inner));
    struct packed_product product = {x, w, scratch, gated, y, rows, columns, inner, target};
    memset(scratch, 0, strips_bytes(rows, inner));
    run_team(team, run_packed_product, &product);
}

static void mix(struct team *team, int member, void *argument) {
    const struct work *work = argument;
    const struct scratch *s = &work->scratch;
    const struct cache cache = cache_of(work->model, work->step, 0);
    const struct attention attention = {&cache,          &work->tokens,    s->tiles,   work->tile_count, s->qkv,
                                        work->model->cos, work->model->sin, s->queries, s->mixed};
    attend(team, &attention, s->scores + s->scores_per_member * (size_t)member);
}

void halogen_attend(struct team *team, const struct halogen_model *model, const struct halogen_step *step,
                    const float *qkv, void *mixed, void *scratch) {
    const struct cache cache = cache_of(model, step, 0);
    struct work work = {.model = model,
                        .step = step,
                        .scratch = lay_out(model, step, scratch, team_size(team)),
                        .tokens = tokens_of(step)};
    work.scratch.qkv = (float *)qkv;
    work.scratch.mixed = mixed;
    work.tile_count = cut_tiles(&work.tokens, tile_queries(&cache), work.scratch.tiles);
    run_team(team, mix, &work);
}

int64_t halogen_struct_bytes(int32_t which) {
    const size_t bytes[] = {sizeof(struct halogen_layer), sizeof(struct halogen_model), sizeof(struct halogen_step)};
    return (int64_t)bytes[which];
}
