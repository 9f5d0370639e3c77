# The command line as an application, or (library = true) the package for an interpreter's environment.
{
  lib,
  pythonPackages,
  library ? false,
}:
let
  inherit (pythonPackages.python) pkgs;
  project = (lib.importTOML ../python/pyproject.toml).project;
in
(if library then pkgs.buildPythonPackage else pkgs.buildPythonApplication) {
  pname = project.name;
  inherit (project) version;
  pyproject = true;
  src = lib.cleanSourceWith {
    name = "sparkloom-source";
    src = ../python;
    # The sources of the wheel and no caches, so that the hash changes only with them.
    filter =
      path: _:
      let
        name = baseNameOf path;
      in
      !(lib.elem name [ "__pycache__" "requirements" "poetry.lock" "build" ] || lib.hasSuffix ".egg-info" name);
  };
  build-system = [ pkgs.setuptools ];
  dependencies = pythonPackages.poetryPackages;
  # Tests need the whole repository; they run in its own checks.
  doCheck = false;
  pythonImportsCheck = [ "sparkloom" ];
  meta = {
    inherit (project) description;
    license = lib.licenses.mit;
    mainProgram = "sparkloom";
    platforms = lib.platforms.linux;
  };
}
