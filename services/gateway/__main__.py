"""``python -m services.gateway``."""

from services.common.process import launch
from services.gateway.config import GatewayConfig
from services.gateway.serve import serve

if __name__ == "__main__":
    launch(GatewayConfig, serve)
