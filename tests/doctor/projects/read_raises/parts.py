from template.data.phantom import Phantom

AGES = {number: 40 + number for number in range(8) if number != 5}


class Healthy(Phantom):
    def age(self, number):
        return AGES.get(number)

    def read(self, case):
        self.age(case.source[1])
        return super().read(case)


class Broken(Healthy):
    def age(self, number):
        return AGES[number]
