"""The facts that processes share, in etcd: keys, records, the store's port and its adapters."""
