"""DeepSpeed configs: written, read, described by a schema, checked."""
