#define _GNU_SOURCE
#include "team.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MEET_SPINS 1000  // about 20 us: the others are a chunk of work behind
#define IDLE_SPINS 1000  // the next step may come at once

struct gate {
    _Alignas(64) _Atomic int32_t turn;  // what sleepers sleep on
    _Atomic int32_t sleepers;
};

// The part of some items that is a member's own: how many of them are claimed since the barrier's turn.
struct share {
    _Alignas(64) _Atomic uint64_t claimed;  // the turn in the upper half, the count in the lower
};

struct team {
    struct gate start, barrier;
    _Alignas(64) _Atomic int32_t arrived;
    _Alignas(64) _Atomic int32_t next;  // item to be claimed
    _Alignas(64) int threads;
    bool stopping;
    team_work work;
    void *argument;
    pthread_t *members;
    struct share *shares;
};

struct member {
    struct team *team;
    int number;
};

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Returns when the gate's turn is no longer `turn`.
static void wait_at(struct gate *gate, int32_t turn, int spins) {
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&gate->turn, memory_order_acquire) != turn) return;
        relax();
    }
    atomic_fetch_add(&gate->sleepers, 1);
    while (atomic_load(&gate->turn) == turn)
        syscall(SYS_futex, &gate->turn, FUTEX_WAIT_PRIVATE, turn, NULL, NULL, 0);
    atomic_fetch_sub(&gate->sleepers, 1);
}

static void open_gate(struct gate *gate) {
    atomic_fetch_add(&gate->turn, 1);
    if (atomic_load(&gate->sleepers)) syscall(SYS_futex, &gate->turn, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void meet(struct team *team) {
    const int32_t turn = atomic_load(&team->barrier.turn);
    if (atomic_fetch_add(&team->arrived, 1) + 1 < team->threads) {
        wait_at(&team->barrier, turn, MEET_SPINS);
        return;
    }
    atomic_store(&team->arrived, 0);
    atomic_store(&team->next, 0);
    open_gate(&team->barrier);
}

bool claim(struct team *team, int total, int chunk, int *first, int *end) {
    *first = atomic_fetch_add(&team->next, chunk);
    *end = *first + chunk < total ? *first + chunk : total;
    return *first < total;
}

// Claims the next items of `member`'s part of the whole.
static bool claim_share(struct team *team, int member, int total, int chunk, int *first, int *end) {
    const int begin = (int)((int64_t)total * member / team->threads);
    const int size = (int)((int64_t)total * (member + 1) / team->threads) - begin;
    const uint64_t turn = (uint64_t)(uint32_t)atomic_load(&team->barrier.turn) << 32;
    struct share *share = team->shares + member;
    uint64_t seen = atomic_load(&share->claimed);
    int claimed;
    do {
        claimed = (seen >> 32) == (turn >> 32) ? (int)(uint32_t)seen : 0;
        if (claimed >= size) return false;
    } while (!atomic_compare_exchange_weak(&share->claimed, &seen, turn | (uint32_t)(claimed + chunk)));
    *first = begin + claimed;
    *end = *first + (chunk < size - claimed ? chunk : size - claimed);
    return true;
}

bool claim_near(struct team *team, int member, int total, int chunk, int *first, int *end) {
    for (int i = 0; i < team->threads; i++)
        if (claim_share(team, (member + i) % team->threads, total, chunk, first, end)) return true;
    return false;
}

static void *serve(void *argument) {
    struct member *self = argument;
    struct team *team = self->team;
    const int number = self->number;
    free(self);
    for (int32_t turn = 0;; turn++) {
        wait_at(&team->start, turn, IDLE_SPINS);
        if (team->stopping) return NULL;
        team->work(team, number, team->argument);
        meet(team);
    }
}

void run_team(struct team *team, team_work work, void *argument) {
    team->work = work;
    team->argument = argument;
    open_gate(&team->start);
    work(team, 0, argument);
    meet(team);
}

int team_size(const struct team *team) { return team->threads; }

void halogen_close_team(struct team *team) {
    team->stopping = true;
    open_gate(&team->start);
    for (int i = 1; i < team->threads; i++) pthread_join(team->members[i], NULL);
    free(team->members);
    free(team->shares);
    free(team);
}

static bool add_member(struct team *team, int number) {
    struct member *self = malloc(sizeof *self);
    if (!self) return false;
    *self = (struct member){team, number};
    if (pthread_create(&team->members[number], NULL, serve, self)) {
        free(self);
        return false;
    }
    pthread_setname_np(team->members[number], "halogen-step");
    return true;
}

struct team *halogen_open_team(int32_t threads) {
    struct team *team = aligned_alloc(64, sizeof *team);
    if (!team) return NULL;
    *team = (struct team){.threads = 1,
                          .members = calloc((size_t)threads, sizeof(pthread_t)),
                          .shares = aligned_alloc(64, (size_t)threads * sizeof(struct share))};
    if (team->members && team->shares) {
        memset(team->shares, 0, (size_t)threads * sizeof(struct share));
        while (team->threads < threads && add_member(team, team->threads)) team->threads++;
        if (team->threads == threads) return team;
    }
    halogen_close_team(team);
    return NULL;
}
