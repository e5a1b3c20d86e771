#!/usr/bin/env bash
# The system in containers: built, started, asked, scaled, restarted under load, watched, taken down.
#
# Uses the Docker engine that DOCKER_HOST names. All that it makes carries the name of its own project and is removed at
# the end, except for the images. A row is printed for each check; the status is 1 if one of them fails.
set -euo pipefail
cd "$(dirname "$0")/../.."

export COMPOSE_PROJECT_NAME=halogen-e2e-$$ COMPOSE_FILE=compose/compose.yaml COMPOSE_PROGRESS=quiet
export HALOGEN_GATEWAY_PORTS=127.0.0.1:52051-52058 HALOGEN_PROMETHEUS_PORT=127.0.0.1:52090
export HALOGEN_KV_ARENA_BYTES=$((64 << 20)) HALOGEN_WEIGHTS_SIZE=1g
ANSWER="The capital of France is Paris."
LOAD=$COMPOSE_PROJECT_NAME-load
failed=0

check() {  # check WHAT COMMAND...: one row; what the command printed last is what was seen
  local what=$1 began=$SECONDS seen status verdict=ok
  shift
  set +e  # in the condition of an `if` or `||`, bash would pass over failures within COMMAND
  seen=$(set -e; "$@" 2>&1 </dev/null)
  status=$?
  set -e
  [ $status = 0 ] || { verdict=FAIL failed=1; printf '%s\n' "$seen" >&2; }
  printf '%-4s  %4d s  %s: %s\n' "$verdict" $((SECONDS - began)) "$what" "$(tail -n 1 <<<"$seen")"
}

end() {
  local status=$?
  [ "$failed" = 0 ] && [ "$status" = 0 ] || docker compose logs --no-color --tail 40 >&2 || true
  docker rm -f "$LOAD" >/dev/null 2>&1 || true
  docker compose --profile '*' down --volumes --remove-orphans >/dev/null 2>&1 || true
}
trap end EXIT

all() {  # all SERVICE=COUNT...: brings the system to so many containers, and waits until they are healthy
  docker compose up --detach --wait --wait-timeout 240 --no-recreate "${@/#/--scale=}"
}

containers() { docker compose ps --quiet "$@"; }

answers() {
  local said
  said=$(docker compose run --rm -T cli chat "What is the capital of France?" --temperature 0 --max-tokens 32)
  printf '%s\n' "$said"
  grep -qF "$ANSWER" <<<"$said"
}

refuses() {  # refuses TOKEN-FILE WORDS COMMAND...: the halogen command with that token, which is told those words
  local token=$1 words=$2 said
  shift 2
  said=$(! docker compose run --rm -T --env "HALOGEN_TOKEN_FILE=$token" cli "$@" 2>&1)
  printf '%s\n' "$said"
  grep -qF "$words" <<<"$said"
}

strangers_are_refused() {
  refuses "" "asks for a credential" chat hello
  refuses /var/lib/halogen/operator/infer.token "needs a credential of role admin or publish" status
}

inside() {  # inside PROGRAM ARGUMENT...: a Python program of this folder, run in the system's network
  local program=$1
  shift
  docker compose run --rm -T --entrypoint python cli -c "$(<"tests/e2e/$program.py")" "$@"
}

under_load() {  # under_load COMMAND...: load that goes on until the command is done; fails if either does
  docker compose run --detach --name "$LOAD" --entrypoint python cli -c "$(<tests/e2e/load.py)" --at-once 6 >/dev/null
  set +e
  (set -e; "$@")
  local status=$?
  set -e
  docker stop --time 120 "$LOAD" >/dev/null
  docker logs "$LOAD"
  status=$((status + $(docker inspect --format '{{.State.ExitCode}}' "$LOAD")))
  docker rm "$LOAD" >/dev/null
  return $status
}

has_torch() { docker compose exec -T "$1" python -c "import importlib.util as i; print(i.find_spec('torch') is not None)"; }

slim_has_no_torch() {
  local service
  for service in gateway scheduler loader; do [ "$(has_torch $service)" = False ]; done
  [ "$(has_torch engine)" = True ]
  echo "importable in the engine alone"
}

users_differ() {
  local service users
  users=$(for service in etcd gateway scheduler loader engine; do
    docker compose exec -T $service grep ^Uid: /proc/1/status 2>/dev/null || docker inspect --format 'Uid: {{.Config.User}}' "$(containers $service)"
  done | awk '{print $2}')
  echo "users" $users
  [ "$(sort -u <<<"$users" | wc -l)" = 5 ] && ! grep -qE '^(0|root)?$' <<<"$users"
}

weights_are_mapped() {
  docker compose exec -T engine grep -E ' /var/lib/halogen/weights [^ ]*tmpfs|tmpfs /var/lib/halogen/weights' /proc/mounts | grep huge=always
  docker compose exec -T engine grep /var/lib/halogen/weights/ /proc/1/maps
}

kernels_are_native() {
  docker compose logs --no-log-prefix engine | grep kernels_chosen | sort -u | grep avx
}

restart_each() {  # restart_each SERVICE: one container after the other, each healthy before the next
  local container
  for container in $(containers "$1"); do
    docker restart --time 60 "$container"
    docker compose up --detach --wait --wait-timeout 120 --no-recreate --no-deps --scale "$1=$(containers "$1" | wc -l)" "$1"
  done
}

engines_2_4_2() {
  local count
  for count in 2 4 2; do all gateway=2 loader=2 scheduler=2 engine=$count; done
}

board_has_data() { inside prometheus --targets 8 <compose/grafana/dashboards/halogen.json; }

nothing_is_left() {
  docker compose --profile '*' down --volumes --remove-orphans
  local label=label=com.docker.compose.project=$COMPOSE_PROJECT_NAME left
  left=$(docker ps --all --quiet --filter $label; docker volume ls --quiet --filter $label; docker network ls --quiet --filter $label)
  echo "left: ${left:-nothing}"
  [ -z "$left" ]
}

check "the images are built" docker compose --profile cli build
check "up --wait serves the demo model" all
check "the demo question is answered" answers
check "no call without a token, no control with one for inference" strangers_are_refused
check "Prometheus starts" docker compose up --detach --wait prometheus
check "no PyTorch outside of the engine" slim_has_no_torch
check "every kind of process is a user of its own, none is root" users_differ
check "the engine maps weights of a huge-page tmpfs" weights_are_mapped
check "the engine computes with the native kernels" kernels_are_native
check "2 gateways, 2 loaders, 3 engines, 2 schedulers" all gateway=2 loader=2 scheduler=2 engine=3
check "200 requests, every engine >= 15 %, every gateway >= 30 %" \
  inside load --requests 200 --engines 3 --engine-share 0.15 --gateways 2 --gateway-share 0.3
check "engines 2 -> 4 -> 2 under load" under_load engines_2_4_2
for service in etcd scheduler gateway loader engine; do
  check "rolling restart of every $service under load" under_load restart_each $service
done
check "Prometheus reaches all, figures add up after 50 aborts, the board has data" board_has_data
check "the observability profile is sound" docker compose --profile observability config --quiet
check "down leaves nothing" nothing_is_left
exit $failed
