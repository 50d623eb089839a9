"""How a script names, builds and places the model that it trains."""
