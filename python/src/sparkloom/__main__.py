from sparkloom.cli import main

main()
