"""Comparison of runs, from a file that lists them to a table and a page.

plan: file to planned runs    runner: train them    results, wandb_runs: what they reached
statistics, tables: the numbers    page, plots, output: the files    sweep: the plan at W&B
"""
