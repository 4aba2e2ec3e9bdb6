def make(folder, broken):
    if broken:
        (folder / "runs").touch()
