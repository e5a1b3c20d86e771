// Threads that compute one step together. They wait by spinning for microseconds and then sleep: a library's
// spinning barrier was measured at a fortieth of this speed as soon as another program wanted one of the cores.
#ifndef HALOGEN_TEAM_H
#define HALOGEN_TEAM_H

#include <stdbool.h>
#include <stdint.h>

struct team;

typedef void (*team_work)(struct team *team, int member, void *argument);

// Starts threads - 1 threads, which sleep until there is work. Null if they cannot be had.
struct team *halogen_open_team(int32_t threads);

// Ends them; nothing may be running.
void halogen_close_team(struct team *team);

int team_size(const struct team *team);

// Has every member call `work`, the caller as member 0; returns when all have returned.
void run_team(struct team *team, team_work work, void *argument);

// Claims the next `chunk` of `total` items between two barriers: *first .. *end - 1. False when none is left.
bool claim(struct team *team, int total, int chunk, int *first, int *end);

// The same for a member that should work through neighbouring items: first those of its own part, in order, then what
// is left of the others'. Items of one pair of barriers are claimed by one of the two ways.
bool claim_near(struct team *team, int member, int total, int chunk, int *first, int *end);

// Returns once every member is here; then items can be claimed anew.
void meet(struct team *team);

#endif
