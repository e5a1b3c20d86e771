"""``python -m services.gateway``."""

from services.common.importing import importing

with importing():
    from services.common.process import launch
    from services.gateway.config import GatewayConfig
    from services.gateway.serve import serve

if __name__ == "__main__":
    launch(GatewayConfig, serve)
