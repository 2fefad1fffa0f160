"""The generator of seeds under the name of the module in which torchdata had it."""

from headrace.pipes.graph.seeds import SeedGenerator as SeedGenerator
