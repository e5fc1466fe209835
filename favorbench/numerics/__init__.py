"""Arrays of any library, sums in log space, named random streams, and the machine they run on."""
