# Bill of materials (CycloneDX) and licence report of what the image carries.
{
  runCommand,
  closureInfo,
  python3,
  python-env,
}:
runCommand "sparkloom-image-report"
  {
    nativeBuildInputs = [ python3 ];
    closure = closureInfo { rootPaths = [ python-env ]; };
  }
  ''
    mkdir -p $out/share/sparkloom
    python3 ${./report.py} \
      --name sparkloom --version ${python-env.project.version} \
      --site-packages ${python-env.environment}/${python-env.python.sitePackages} \
      --store-paths $closure/store-paths \
      --output $out/share/sparkloom
  ''
