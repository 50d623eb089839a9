"""How text is folded, tables are drawn, sizes are written and waiting is shown."""
