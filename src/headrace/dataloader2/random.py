"""`SeedGenerator`, under the module name that torchdata has for it."""

from headrace.pipes.graph.seeds import SeedGenerator as SeedGenerator
