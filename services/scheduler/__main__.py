"""The scheduler process: ``python -m services.scheduler``."""

from services.common.importing import importing

with importing():
    from services.common.process import launch
    from services.scheduler.config import SchedulerConfig
    from services.scheduler.serve import serve

if __name__ == "__main__":
    launch(SchedulerConfig, serve)
