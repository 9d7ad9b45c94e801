"""Where the time of training goes: `python -m harl.bench`."""
