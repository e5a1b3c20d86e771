"""Admission: who may use how much KV memory of which engine, and what cohorts serve."""
