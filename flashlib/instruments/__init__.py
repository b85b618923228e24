"""Instruments: what attention moves (traffic, pipelines), holds (peak), takes (timing), and could take (machine)."""
